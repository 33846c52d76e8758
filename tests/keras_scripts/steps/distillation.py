"""A teacher, a student that learns from it, and a student that learns alone: three trainings."""

import json

import keras
import numpy as np
from keras import layers, ops


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha, temperature):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        taught = self.teacher(x, training=False)
        distilled = self.distillation_loss(
            ops.softmax(taught / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        )
        alone = self.student_loss(y, y_pred)
        return self.alpha * alone + (1 - self.alpha) * distilled * self.temperature**2

    def call(self, x):
        return self.student(x)


def classifier(width):
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(width, activation="relu"), layers.Dense(4)]
    )


keras.utils.set_random_seed(33)
random = np.random.default_rng(33)
x = random.normal(size=(112, 8)).astype("float32")
y = (x @ random.normal(size=(8, 4))).argmax(axis=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# In order, so that each batch is the same one in every run of this script.
common = {"batch_size": 20, "shuffle": False, "verbose": 2}

teacher, student, alone = classifier(32), classifier(6), classifier(6)
alone.set_weights(student.get_weights())

teacher.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
taught = teacher.fit(x, y, epochs=3, **common)

distiller = Distiller(student, teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(0.01),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss=loss,
    distillation_loss=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=4,
)
distilled = distiller.fit(x, y, epochs=2, **common)

alone.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
learned = alone.fit(x, y, epochs=2, validation_split=0.1, **common)

with open("history.json", "w") as file:
    json.dump([taught.history, distilled.history, learned.history], file)
for name, model in {"teacher": teacher, "student": student, "alone": alone}.items():
    model.save_weights(f"{name}.weights.h5")
