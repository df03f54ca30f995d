"""The SDK: reaches a server, sends code, follows jobs. Knows the specification and the HTTP API, nothing behind it."""
