"""Exchanges: a client's request to an engine and the response, from arrival to the last byte."""
