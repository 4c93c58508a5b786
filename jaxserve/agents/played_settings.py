"""Rewards of constant settings that were played already, in memory and on disk.

A search asks for the same rewards again when it goes on after it was cut off, or when it is called
a second time. The file of a search is named by a digest of all that its rewards depend on: every
array of the environment, the episodes, and the source of the simulator.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.datafiles import UNREADABLE_ARCHIVE, source_digest, write_atomic
from jaxserve.env import ServeEnv

_Row = tuple[bytes, float]
"""Grid indices of a setting as bytes, and the speed at which it played."""


class PlayedSettings:
    """Rewards float32[E] of settings and speeds, for the first E episodes of a search."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads what an earlier search left at ``path``; a file that cannot be read counts as none.

        Args:
          path: file that keeps the rewards; None keeps them in memory only.
        """
        self._path = path
        self._rewards: dict[_Row, NDArray[np.float32]] = _read(path)

    def rewards(
        self,
        settings: NDArray[np.int32],
        episodes: int,
        speeds: tuple[float, ...],
        play: Callable[[NDArray[np.int32], int], np.ndarray],
    ) -> NDArray[np.float32]:
        """float32[N, episodes, K]: rewards of settings int32[N, 6] at K speeds.

        Args:
          play: plays settings int32[M, 6] from an episode on, float[M, episodes - first, K].
        """
        had = np.array(
            [
                min(len(self._rewards.get((row.tobytes(), each), ())) for each in speeds)
                for row in settings
            ]
        )
        # Settings that have as many episodes play the others together.
        for first in np.unique(had[had < episodes]):
            missing = settings[had == first]
            for row, values in zip(missing, play(missing, int(first)), strict=True):
                for place, speed in enumerate(speeds):
                    name = (row.tobytes(), speed)
                    before = self._rewards.get(name, np.zeros(0, np.float32))[:first]
                    self._rewards[name] = np.append(before, values[:, place]).astype(np.float32)
            self._save()
        return np.stack(
            [
                np.stack([self._rewards[row.tobytes(), s][:episodes] for s in speeds], axis=1)
                for row in settings
            ]
        )

    def _save(self) -> None:
        if self._path is None:
            return
        names = list(self._rewards)
        lengths = np.array([len(self._rewards[name]) for name in names], np.int32)
        packed = io.BytesIO()
        np.savez(
            packed,
            settings=np.stack([np.frombuffer(setting, np.int32) for setting, _ in names]),
            speeds=np.array([speed for _, speed in names]),
            lengths=lengths,
            rewards=np.concatenate([self._rewards[name] for name in names]),
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, packed.getvalue())
        except OSError:
            # A folder that cannot be written only costs the time of the next search.
            self._path = None


def search_digest(env: ServeEnv, keys: jax.Array) -> str:
    """Digest of all that the rewards of a search depend on."""
    digest = hashlib.sha256(jax.__version__.encode())
    # The modules at the top hold the environment, and the grids that settings are indices of.
    digest.update(source_digest("sim", "arrays", "tasks", "agents"))
    leaves, tree = jax.tree.flatten((env, jax.random.key_data(keys)))
    digest.update(str(tree).encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _read(path: Path | None) -> dict[_Row, NDArray[np.float32]]:
    if path is None or not path.is_file():
        return {}
    try:
        # Not np.load, which leaves a damaged file open.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            ends = np.cumsum(archive["lengths"])
            pieces = np.split(archive["rewards"].astype(np.float32), ends[:-1])
            rows = [row.tobytes() for row in archive["settings"].astype(np.int32)]
            names = zip(rows, archive["speeds"].tolist(), strict=True)
            return dict(zip(names, pieces, strict=True))
    except (*UNREADABLE_ARCHIVE, KeyError):
        return {}
