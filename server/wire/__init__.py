"""Wire formats: bodies of requests and responses, sentences of errors, descriptions of tasks."""
