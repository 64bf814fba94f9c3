"""Asks the server for the classes of the held-out wines and compares them with those of scikit-learn."""

import sys

import joblib
import numpy as np

from fused_mlp import Client

rows = np.load("rows.npy")
pipeline = joblib.load("wine.joblib")

with Client(sys.argv[1]) as client:
    labels = np.array(client.model("wine").version().labels)
    probabilities = client.predict("wine", rows).output  # the scaler is part of the model: raw features go in

predicted = labels[probabilities.argmax(axis=1)]
same = predicted == pipeline.predict(rows)
print(f"{same.sum()} of {len(rows)} predictions are those of scikit-learn")
difference = np.abs(probabilities - pipeline.predict_proba(rows)).max()
print(f"largest difference of a probability: {difference:.1e}")
assert same.all()
