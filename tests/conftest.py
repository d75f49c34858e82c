import os

# On JAX much of the time is XLA compiling one small operation after the other. Set before Keras is imported.
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
