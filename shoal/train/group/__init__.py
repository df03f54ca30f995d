"""A small group of workers: send, receive, all-reduce, membership; in threads, shared memory or over a network."""
