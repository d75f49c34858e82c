"""Environment variables with which JAX compiles quickly. They are for tests, where programs run only briefly."""

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def variables(cache):
    """{name: value}, to be set before JAX is imported.

    Args:
        cache: Folder of compiled programs. Present and later processes with the same folder share them.
    """
    return {
        "XLA_FLAGS": FLAGS,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
