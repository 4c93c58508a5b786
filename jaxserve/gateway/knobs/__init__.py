"""Knobs: values, the engines' own and the gateway's, leases, and the operator's hold."""
