"""The browser of the other pages' tests."""

from tests.server.conftest import browser as browser
