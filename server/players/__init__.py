"""Who plays a session other than a client: agents, language models, baselines."""
