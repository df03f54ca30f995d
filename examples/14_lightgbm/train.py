"""Lesson 14: an ordinary LightGBM script on two workers, each of which sees only half of the digits.

    shoal run examples/14_lightgbm/train.py --framework lightgbm --workers 2

`shoal.lightgbm.params()` is the list of machines and this worker's port; alone it is empty, and the script trains by
itself. A script that takes them as flags needs nothing of Shoal:

    shoal run old.py --framework lightgbm --workers 2 -- --machines {worker_hosts} --local_listen_port {port}

The first worker has the images of 0 to 4, the second those of 5 to 9; the model they grow together knows all ten.
The interpreter needs lightgbm and scikit-learn.
"""

import hashlib
import os

import lightgbm as lgb
import shoal.lightgbm
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ROUNDS = 20


def main() -> None:
    rank, size = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_SIZE", "1"))
    images, digits = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, digits, test_size=0.25, random_state=0)
    mine = train_y * size // 10 == rank
    print(f"rank {rank} of {size} has {mine.sum()} images of {sorted({int(y) for y in train_y[mine]})}")
    params = {"objective": "multiclass", "num_class": 10, "num_leaves": 15, "learning_rate": 0.2, "verbosity": -1}
    model = lgb.train({**params, **shoal.lightgbm.params()}, lgb.Dataset(train_x[mine], train_y[mine]), ROUNDS)
    guesses = model.predict(test_x).argmax(axis=1)
    trees = model.model_to_string().partition("\nparameters:")[0]  # behind it stand the ports, which differ
    digest = hashlib.sha256(trees.encode()).hexdigest()[:12]
    print(f"rank {rank}: accuracy {(guesses == test_y).mean():.3f} on all digits, model {digest}")
    if rank == 0:
        model.save_model(os.path.join(os.environ.get("SHOAL_OUTPUTS", "."), "model.txt"))


if __name__ == "__main__":
    main()
