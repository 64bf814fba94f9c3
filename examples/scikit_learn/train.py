"""Trains a scikit-learn pipeline and writes it twice: wine.onnx for the server, wine.joblib to compare with."""

import joblib
import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

x, y = load_wine(return_X_y=True)
names = np.array(["barolo", "grignolino", "barbera"])
x_train, x_test, y_train, y_test = train_test_split(x.astype(np.float32), names[y], random_state=0)

pipeline = make_pipeline(
    StandardScaler(),
    MLPClassifier(hidden_layer_sizes=(64, 32), max_iter=500, random_state=0),
)
pipeline.fit(x_train, y_train)
print(f"right on held-out wines: {pipeline.score(x_test, y_test):.1%}")

with open("wine.onnx", "wb") as file:
    file.write(to_onnx(pipeline, x_test[:1]).SerializeToString())
np.save("rows.npy", x_test)
np.save("probabilities.npy", pipeline.predict_proba(x_test))
joblib.dump(pipeline, "wine.joblib")
