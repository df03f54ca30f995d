"""`python -m shoal.adapters.tensorflow SCRIPT ARGS…`: a worker or parameter server of a TensorFlow cluster.

The script is the chief's alone, and this process serves what the chief asks of it. A script that starts servers itself
(its own branch for such tasks, or an old tf.compat.v1 one) is run here instead, as it expects.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.adapters import script


def main(arguments: Sequence[str]) -> int:
    task = json.loads(os.environ["TF_CONFIG"])
    who = f"{task['task']['type']}-{task['task']['index']}"
    if arguments and starts_servers(Path(arguments[0]).read_bytes()):
        print(f"{arguments[0]} starts its own servers: {who} runs it", flush=True)
        return script.run(arguments[0], arguments[1:])
    print(f"TensorFlow's {who}, for the chief", flush=True)
    serve(task)
    return 0


def starts_servers(source: bytes) -> bool:
    """Whether a script makes a `tf.distribute.Server` or a `tf.train.Server` by any of their names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False  # the chief will say what is wrong with it
    return any(_is_server(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_server(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "Server"
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "Server"
        and isinstance(called.value, (ast.Attribute, ast.Name))
        and (called.value.attr if isinstance(called.value, ast.Attribute) else called.value.id)
        in ("distribute", "train")
    )


def serve(config: dict[str, Any]) -> None:
    import tensorflow

    cluster = tensorflow.train.ClusterSpec(config["cluster"])
    task = config["task"]
    server = tensorflow.distribute.Server(
        cluster, job_name=task["type"], task_index=int(task["index"]), protocol="grpc", start=True
    )
    server.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
