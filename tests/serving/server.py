"""Runs SavedModels as TensorFlow Serving does: with TensorFlow's loader and session in C++, called through its C API.

    python -m tests.serving.server WORK ANSWERS

WORK is a pickled dictionary:

* "models": a list of folders;
* "requests": a list of (index of the model, {input tensor: array}, {output: tensor});
* "clients": the fields of `tests.serving.program.Clients`, or `None`.

The process answers the requests one by one. Then all clients repeat their requests at the same time, in random order.
The pickled ANSWERS are what `tests.serving.program.read_answers` returns. TensorFlow's Python package is not imported.
"""

import contextlib
import ctypes
import importlib.util
import pathlib
import pickle
import random
import sys
import threading
import time

import numpy as np

# Values of TF_DataType and TF_Code in TensorFlow's C API (tf_datatype.h, tf_status.h).
_STRING = 7
_TYPES = {1: "float32", 3: "int32", 4: "uint8", 9: "int64", 10: "bool"}
_CODES = {3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 13: "INTERNAL"}
# The 24 bytes of a string that refers to other memory (ctstring_internal.h). The lowest two bits are the kind.
_VIEW = np.dtype([("size", "u8"), ("pointer", "u8"), ("unused", "u8")])
_SMALL, _LARGE, _OFFSET = 0, 1, 2


class _Output(ctypes.Structure):
    """TF_Output, a tensor of a graph."""

    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


def _load_library():
    folder = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
    library = ctypes.CDLL(f"{folder}/libtensorflow_cc.so.2")
    pointers = ("NewStatus", "NewSessionOptions", "NewGraph", "LoadSessionFromSavedModel", "GraphOperationByName")
    for name in (*pointers, "AllocateTensor", "TensorData"):
        getattr(library, f"TF_{name}").restype = ctypes.c_void_p
    for name in ("Dim", "TensorByteSize"):
        getattr(library, f"TF_{name}").restype = ctypes.c_int64
    library.TF_Message.restype = ctypes.c_char_p
    return library


class Status:
    """The status of a call."""

    def __init__(self, library):
        self._library, self.pointer = library, ctypes.c_void_p(library.TF_NewStatus())

    def problem(self):
        """The code and the message of an error, or `None`."""
        code = self._library.TF_GetCode(self.pointer)
        message = self._library.TF_Message(self.pointer).decode()
        self._library.TF_DeleteStatus(self.pointer)
        return f"{_CODES.get(code, code)}: {message}" if code else None


class Model:
    """A SavedModel. Many threads may run it at once."""

    def __init__(self, library, folder):
        self._library, self._graph, status = library, ctypes.c_void_p(library.TF_NewGraph()), Status(library)
        options, tags = ctypes.c_void_p(library.TF_NewSessionOptions()), (ctypes.c_char_p * 1)(b"serve")
        arguments = (options, None, str(folder).encode(), tags, 1, self._graph, None, status.pointer)
        self._session = ctypes.c_void_p(library.TF_LoadSessionFromSavedModel(*arguments))
        if problem := status.problem():
            raise ValueError(problem)

    def run(self, feeds, fetches):
        """Returns ({output: array}, `None`), or ({}, the problem)."""
        inputs, status = [self._new_tensor(array) for array in feeds.values()], Status(self._library)
        values = (ctypes.c_void_p * len(inputs))(*(tensor for tensor, _ in inputs))
        found = (ctypes.c_void_p * len(fetches))()
        given = self._named(feeds), values, len(inputs)
        asked = self._named(fetches.values()), found, len(fetches)
        self._library.TF_SessionRun(self._session, None, *given, *asked, None, 0, None, status.pointer)
        for value in values:
            self._library.TF_DeleteTensor(ctypes.c_void_p(value))
        if problem := status.problem():
            return {}, problem
        return {name: self._taken(ctypes.c_void_p(value)) for name, value in zip(fetches, found, strict=True)}, None

    def _named(self, tensors):
        """TF_Outputs for names like "serving_default_images:0"."""
        parts = [name.rpartition(":") for name in tensors]
        find = self._library.TF_GraphOperationByName
        return (_Output * len(parts))(*((find(self._graph, name.encode()), int(index)) for name, _, index in parts))

    def _new_tensor(self, array):
        """A TF_Tensor, and memory that must exist as long as the tensor."""
        contents = b""
        if array.dtype == object:
            kind, lengths = _STRING, np.array([len(content) for content in array.flat], "u8")
            contents = np.frombuffer(b"".join(array.flat), "u1")
            values = np.zeros(array.size, _VIEW)
            values["size"], values["pointer"] = lengths << 2 | 3, contents.ctypes.data + lengths.cumsum() - lengths
        else:
            [kind] = (kind for kind, name in _TYPES.items() if name == array.dtype)
            values = np.ascontiguousarray(array)
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        size = ctypes.c_size_t(values.nbytes)
        tensor = ctypes.c_void_p(self._library.TF_AllocateTensor(kind, shape, array.ndim, size))
        ctypes.memmove(ctypes.c_void_p(self._library.TF_TensorData(tensor)), values.ctypes.data, values.nbytes)
        return tensor.value, contents

    def _taken(self, tensor):
        """The values of a TF_Tensor, which is deleted."""
        kind = self._library.TF_TensorType(tensor)
        shape = [self._library.TF_Dim(tensor, axis) for axis in range(self._library.TF_NumDims(tensor))]
        data, size = self._library.TF_TensorData(tensor), self._library.TF_TensorByteSize(tensor)
        if kind == _STRING:
            values = np.empty(size // 24, object)
            values[:] = [_string_at(data + 24 * i) for i in range(size // 24)]
        else:
            values = np.frombuffer(ctypes.string_at(data, size), _TYPES[kind])
        self._library.TF_DeleteTensor(tensor)
        return values.reshape(shape)


def _string_at(address):
    words = np.frombuffer(ctypes.string_at(address, 24), "u8").tolist()
    kind, size = words[0] & 3, words[0] >> 2
    if kind == _SMALL:
        return ctypes.string_at(address + 1, (words[0] & 255) >> 2)
    if kind == _OFFSET:
        return ctypes.string_at(address + (words[0] >> 32), (words[0] & 0xFFFFFFFF) >> 2)
    return ctypes.string_at(words[2 if kind == _LARGE else 1], size)


def _kib(field):
    """The memory in use ("VmRSS") or its peak ("VmHWM"), without freed memory that the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0])


def replay(models, requests):
    """Answers requests one by one."""
    loaded = _kib("VmRSS")
    with contextlib.suppress(OSError):  # If the system does not allow that, the peak is that since the start.
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    answers = [models[index].run(feeds, fetches) for index, feeds, fetches in requests]
    errors = {index: problem for index, (_, problem) in enumerate(answers) if problem}
    report = {"loaded_kib": loaded, "peak_kib": _kib("VmHWM")}
    return {"outputs": [outputs for outputs, _ in answers], "errors": errors, "report": report}


def load(models, requests, threads, rounds, number, seconds):
    """Sends requests from several threads. Every answer must equal the first one to the same request, bit for bit."""

    def answer(index, feeds, fetches):
        outputs, problem = models[index].run(feeds, fetches)
        return pickle.dumps(sorted(outputs.items())), problem

    first = [answer(*request)[0] for request in requests]
    counts = {"answered": 0, "different": 0, "failed_under_load": 0}
    lock, after_rounds = threading.Lock(), []

    def send(seed, enough, end):
        draw = random.Random(seed)
        while sum(counts.values()) < enough or time.monotonic() < end:
            i = draw.randrange(len(requests))
            found, problem = answer(*requests[i])
            outcome = "failed_under_load" if problem else "answered" if found == first[i] else "different"
            with lock:
                counts[outcome] += 1

    for number_of_round in range(rounds):
        goal = sum(counts.values()) + number, time.monotonic() + seconds
        clients = [threading.Thread(target=send, args=(number_of_round * threads + i, *goal)) for i in range(threads)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        after_rounds.append(_kib("VmRSS"))
    return counts | {"after_rounds_kib": after_rounds}


def main(work, answers):
    work = pickle.loads(pathlib.Path(work).read_bytes())
    library = _load_library()
    models = [Model(library, folder) for folder in work["models"]]
    found = replay(models, work["requests"])
    if work["clients"]:
        found["report"] |= load(models, **work["clients"])
    pathlib.Path(answers).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
