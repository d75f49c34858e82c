"""The command line: `python -m training COMMAND`; `--help` lists the commands."""

import importlib.util
import os
import shlex
import sys
import tempfile

from training.errors import InputError, raised_in_pipeline, shortened_lines


def main(arguments=None):
    """Runs one command. Returns the exit status of the process."""
    try:
        from training.cli.parser import parse

        options = parse(arguments)
        os.environ.update(getattr(options, "environment", {}))
        _import_tensorflow()
        return options.command(options)
    except (InputError, OSError) as error:  # Invalid input can cause an OSError, e.g. a file name that is too long.
        print(f"error: {shortened_lines(str(error))}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"error: {_missing(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        from training.engine.memory import free_memory, is_out_of_memory

        if message := raised_in_pipeline(error):
            print(f"error: {shortened_lines(message)}", file=sys.stderr)
            return 2
        if not is_out_of_memory(error):
            raise
        free = free_memory()
        amount = "" if free is None else f" {free / 1e9:,.1f} GB are free now."
        print(f"error: The memory was not enough.{amount} Set a smaller fit.batch_size.", file=sys.stderr)
        return 2


def _missing(error):
    """The message for an ImportError because of a missing package. Raises the error again if it has another cause."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)  # keras_vit's message about an optional package.
    if error.name is None or error.name.partition(".")[0] in ("keras_vit", "training"):
        raise error
    command = f"{shlex.quote(sys.executable)} -m pip install '.[training]'"
    return f"{error.name} is not installed. In the clone, install it with: {command}"


def _import_tensorflow():
    """Imports TensorFlow with oneDNN, which is faster, but off by default on processors without VNNI.

    Hides the messages that TensorFlow's C++ code prints before it reads TF_CPP_MIN_LOG_LEVEL.
    """
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend not in ("tensorflow", "jax"):
        raise InputError(f"The commands run Keras on TensorFlow or JAX. Received: KERAS_BACKEND={backend}")
    if importlib.util.find_spec(backend) is None:
        raise InputError(
            f"KERAS_BACKEND={backend}: {backend} is not installed. Install it with: "
            f"{sys.executable} -m pip install {backend}"
        )
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as silenced:
        os.dup2(silenced.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if __name__ == "__main__":
    sys.exit(main())
