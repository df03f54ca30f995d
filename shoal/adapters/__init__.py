"""What other libraries' scripts meet in a Shoal job, inside the user's process: their own names, our exchange.

Imports only the training library and what that may import, besides the framework itself; nobody imports it. `path`
holds packages by the names scripts import; it is on the path only of jobs of that framework.
"""
