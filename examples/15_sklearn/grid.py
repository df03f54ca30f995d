"""Lesson 15: a grid search over the workers of a job. Not a line of it is Shoal's.

    shoal run examples/15_sklearn/grid.py --framework sklearn --workers 2
    python examples/15_sklearn/grid.py                                        # alone, on the cores of this machine

The script runs once, as the chief; whatever it hands to joblib (`n_jobs=-1`) is done by the workers. The data goes to
each worker once, not with every fit.
"""

import argparse
import os

from joblib import Parallel, delayed
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

GRID = {"C": [0.1, 1, 10], "gamma": [0.0005, 0.001, 0.005]}


def score(model, images, labels):
    """How good a fit is, and which process judged it: the one that did the fit."""
    return {"accuracy": model.score(images, labels), "process": os.getpid()}


def root(number):
    return number**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="A grid search on the handwritten digits.")
    parser.add_argument("--jobs", type=int, default=-1, help="at a time; -1 is as many as there are workers")
    jobs = parser.parse_args().jobs

    images, labels = load_digits(return_X_y=True)
    search = GridSearchCV(SVC(), GRID, scoring=score, refit="accuracy", cv=3, n_jobs=jobs).fit(images, labels)
    fits = [int(search.cv_results_[f"split{split}_test_process"][at]) for split in range(3) for at in range(9)]
    forest = RandomForestClassifier(50, random_state=0, n_jobs=jobs).fit(images[::2], labels[::2])
    folds = cross_val_score(SVC(), images, labels, cv=3, n_jobs=jobs)
    roots = Parallel(n_jobs=jobs)(delayed(root)(number) for number in range(100))

    print(f"{len(fits)} fits in {len(set(fits))} processes, this one {'too' if os.getpid() in fits else 'not'}")
    print(f"scores {search.cv_results_['mean_test_accuracy'].round(6).tolist()}")
    print(f"best {search.best_params_} with accuracy {search.best_score_:.6f}")
    print(f"forest {forest.score(images[1::2], labels[1::2]):.6f}, folds {folds.round(6).tolist()}")
    print(f"roots {sum(roots):.6f}")


if __name__ == "__main__":
    main()
