"""Replicas of a running deployment: a rule's word, the gateway's routes, processes or pods."""
