"""Lesson 13: an ordinary XGBoost script on two workers, each of which sees only half of the digits.

    shoal run examples/13_xgboost/train.py --framework xgboost --workers 2

Shoal starts the tracker and tells the script of it, so `CommunicatorContext()` needs no arguments. The first worker has
the images of 0 to 4, the second those of 5 to 9. Alone each would never guess a digit of the other's; together they
grow one model that knows all ten. (To run the same file without Shoal as well, write `with shoal.xgboost.context():`.)
The interpreter needs xgboost-cpu and scikit-learn.
"""

import hashlib
import os

import xgboost as xgb
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ROUNDS = 20


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, digits, test_size=0.25, random_state=0)
    with xgb.collective.CommunicatorContext():
        rank, size = xgb.collective.get_rank(), xgb.collective.get_world_size()
        mine = train_y * size // 10 == rank
        rows = xgb.DMatrix(train_x[mine], train_y[mine])
        print(f"rank {rank} of {size} has {rows.num_row()} images of {sorted({int(y) for y in train_y[mine]})}")
        params = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4, "eta": 0.3}
        model = xgb.train(params, rows, ROUNDS, evals=[(rows, "train")], verbose_eval=5)
        guesses = model.predict(xgb.DMatrix(test_x)).argmax(axis=1)
        digest = hashlib.sha256(model.save_raw("json")).hexdigest()[:12]
        print(f"rank {rank}: accuracy {(guesses == test_y).mean():.3f} on all digits, model {digest}")
        if rank == 0:
            model.save_model(os.path.join(os.environ.get("SHOAL_OUTPUTS", "."), "model.json"))


if __name__ == "__main__":
    main()
