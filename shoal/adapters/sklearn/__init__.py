"""scikit-learn, and everything that speaks joblib: the chief runs the user's script, the workers take its tasks."""
