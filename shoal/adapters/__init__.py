"""What runs inside the user's process for a framework that brings no launcher of its own: one file or folder each.

Standard library, the framework itself and numpy only, because it runs in the user's interpreter; of ours `train`,
`contract`, `catalogue`, `errors` and `_lib`.
"""
