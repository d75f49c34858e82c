"""Reads and applies the tables of names, such as `google_names.txt`, which describe the arrays in files of a format.

A table is a list of rules that are used for reading and writing. Placeholders such as `{i}` in a name match numbers.
Shapes: D hidden size, K heads, Dh = D / K.
"""

import dataclasses
import importlib.resources
import re

import numpy as np

from keras_vit.checks import did_you_mean


@dataclasses.dataclass(frozen=True)
class Rule:
    """One kind of array in a file, and the weights that it contains.

    Args:
        name: Name of the array, such as `"blocks.{i}.norm1.weight"`.
        paths: Canonical paths of the weights, such as `("encoder_block_{i}/attention_norm/gamma",)`.
        layout: Key of `LAYOUTS`, which defines how the array stores the weights.
    """

    name: str
    paths: tuple[str, ...]
    layout: str = "same"


def read_rules(file, *sections):
    """Reads the rules of a table of names.

    Each line of the table is a rule: the name of an array, the path of its weight and, unless the array is stored as it
    is, its layout. `a/{b,c}/d` stands for the two paths `a/b/d` and `a/c/d`. `[section]` starts a section, and `#` a
    comment.

    Args:
        file: Path of the table, relative to this folder.
        *sections: Sections to read. By default, the whole table is read.

    Returns:
        List of `Rule`, in the order of the table.
    """
    rules, section = [], ""
    for line in importlib.resources.files(__package__).joinpath(file).read_text("utf-8").splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 1:
            section = words[0].strip("[]")
        elif words and (not sections or section in sections):
            name, path, *layout = words
            rules.append(Rule(name, _paths(path), *layout))
    return rules


def _paths(text):
    choice = re.search(r"\{(\w+(?:,\w+)+)\}", text)
    return tuple(text.replace(choice[0], part) for part in choice[1].split(",")) if choice else (text,)


class Names:
    """The rules that convert the names of the weights in a file format to canonical paths, and back.

    Args:
        rules: List of `Rule`. The first rule that matches a name is used.
        ignored: Regular expressions for names of arrays that are not part of the model, such as an optimizer's state.
    """

    def __init__(self, rules, ignored=()):
        self.rules = tuple(rules)
        self._patterns = [_pattern(rule.name) for rule in self.rules]
        self._ignored = [re.compile(pattern) for pattern in ignored]

    def ignores(self, name):
        """Whether an array of this name is not part of the model."""
        return any(pattern.fullmatch(name) for pattern in self._ignored)

    def find(self, name):
        """(rule, canonical paths) for a name in a file, or `None` if no rule matches."""
        for rule, pattern in zip(self.rules, self._patterns, strict=True):
            if match := pattern.fullmatch(name):
                return rule, tuple(path.format(**match.groupdict()) for path in rule.paths)
        return None

    def decode(self, file, num_heads, pooling_num_heads=None):
        """Converts a file's {name: array} to {canonical path: array}.

        Args:
            file: {name: array}
            num_heads: Number of attention heads.
            pooling_num_heads: Number of heads of the layer `pooling`. `None`: `num_heads`.

        Raises:
            ValueError: If a name is not in the table, if two arrays contain the same weight, or if the type or shape
                of an array is wrong.
        """
        weights, unknown = {}, []
        for name in file:
            if self.ignores(name):
                continue
            if (match := self.find(name)) is None:
                unknown.append(name)
                continue
            rule, paths = match
            if taken := [path for path in paths if path in weights]:
                raise ValueError(f"{name} and another array of the file both contain {_listed(taken)}.")
            heads = pooling_num_heads if pooling_num_heads and paths[0].startswith("pooling/") else num_heads
            weights.update(zip(paths, _decode(name, rule, file[name], heads), strict=True))
        if unknown:
            raise ValueError(self._explain(unknown))
        return weights

    def encode(self, weights, num_heads):
        """Converts {canonical path: array} to {name in the file: array}.

        The rules are applied in order. A rule is applied only if no earlier rule has converted one of its paths.

        Raises:
            ValueError: If a weight has no name.
        """
        arrays_by_name, remaining = {}, dict(weights)
        for rule in self.rules:
            pattern = _pattern(rule.paths[0])
            for first in [path for path in remaining if pattern.fullmatch(path)]:
                numbers = pattern.fullmatch(first).groupdict()
                paths = [path.format(**numbers) for path in rule.paths]
                if all(path in remaining for path in paths):
                    arrays = [remaining.pop(path) for path in paths]
                    arrays_by_name[rule.name.format(**numbers)] = LAYOUTS[rule.layout][1](arrays, num_heads)
        if remaining:
            raise ValueError(f"The format has no names for these weights: {_listed(remaining)}")
        return arrays_by_name

    def _explain(self, unknown):
        numbers = re.findall(r"\d+", unknown[0])
        hint = did_you_mean(unknown[0], [_filled(rule.name, numbers) for rule in self.rules])
        return f"The file contains {len(unknown)} arrays with unknown names: {_listed(unknown)}.{hint}"


def _filled(template, numbers):
    """Replaces the placeholders in a template by `numbers` in order. If there are too few numbers, 0 is used."""
    numbers = iter(numbers)
    return re.sub(r"\{\w+\}", lambda _: next(numbers, "0"), template)


def _pattern(template):
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(template)))


def _listed(names, limit=8):
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _decode(name, rule, array, num_heads):
    if array.dtype.kind != "f":
        raise ValueError(f"{name} is of type {array.dtype}. Weights must be floating-point numbers.")
    try:
        return LAYOUTS[rule.layout][0](array, num_heads)
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{name} has the shape {array.shape}, which does not fit its weights ({_listed(rule.paths)}) with "
            f"{num_heads} heads."
        ) from error


def _single(decode, encode):
    """(decode, encode) for an array that contains one weight and does not depend on the number of heads."""
    return lambda array, num_heads: [decode(array)], lambda arrays, num_heads: encode(arrays[0])


def _split_heads(array, num_heads):
    """(K Dh, D) → (D, K, Dh), or (K Dh,) → (K, Dh)"""
    array = array.reshape(num_heads, -1, *array.shape[1:])  # (K, Dh, D) or (K, Dh)
    return array.transpose(2, 0, 1) if array.ndim == 3 else array


def _join_heads(array):
    """(D, K, Dh) → (K Dh, D), or (K, Dh) → (K Dh,)"""
    if array.ndim == 3:
        return array.transpose(1, 2, 0).reshape(-1, array.shape[0])
    return array.reshape(-1)


def _packed(count):
    """(decode, encode) for an array that contains `count` projections, concatenated along the first axis."""
    return (
        lambda array, num_heads: [_split_heads(part, num_heads) for part in np.split(array, count)],
        lambda arrays, num_heads: np.concatenate([_join_heads(array) for array in arrays]),
    )


def _with_rank(array, rank):
    """The array with `rank` dimensions. Those of size 1 are removed. If too few remain, new ones are added in front."""
    sizes = [size for size in array.shape if size != 1]
    if len(sizes) > rank:
        raise ValueError("too many dimensions")
    return array.reshape([1] * (rank - len(sizes)) + sizes)


def _pointwise_kernel(array):
    if array.ndim != 4 or array.shape[:2] != (1, 1):
        raise ValueError("not a 1 x 1 convolution")
    return array[0, 0]


# A comment gives the shape of the array in the file.
LAYOUTS = {
    "same": _single(lambda array: array, lambda array: array),
    # (out, in) of PyTorch's Linear.
    "dense": _single(lambda array: _transposed(array, 1, 0), lambda array: array.T),
    # (out, in, height, width) of PyTorch's Conv2d, or (in, out, height, width) of its ConvTranspose2d.
    "convolution": _single(lambda array: _transposed(array, 2, 3, 1, 0), lambda array: array.transpose(3, 2, 0, 1)),
    # (D, 1, height, width) of PyTorch's Conv2d with as many groups as channels.
    "depthwise": _single(lambda array: _transposed(array, 2, 3, 0, 1), lambda array: array.transpose(2, 3, 0, 1)),
    # A table (1, rows, D), which is (rows, D) as a weight.
    "table": _single(lambda array: array.reshape(array.shape[-2], array.shape[-1]), lambda array: array[None]),
    # A token (D,), which is (1, 1, D) as a weight.
    "token": _single(lambda array: _with_rank(array, 3), lambda array: array[0, 0]),
    # A number, which is (1,) in some files.
    "scalar": _single(lambda array: _with_rank(array, 0).reshape(()), lambda array: array),
    # A vector (C,), which is (1, 1, 1, C) in old files.
    "channels": _single(lambda array: _with_rank(array, 1), lambda array: array),
    # A 1 x 1 convolution (1, 1, D, classes) or, in PyTorch, (classes, D, 1, 1). It is (D, classes) as a weight.
    "pointwise": _single(_pointwise_kernel, lambda array: array[None, None]),
    "pointwise_convolution": _single(
        lambda array: _pointwise_kernel(_transposed(array, 2, 3, 1, 0)), lambda array: array.T[..., None, None]
    ),
    "heads": _packed(1),
    # The output projection, (D, K Dh) in PyTorch, which is (K, Dh, D) as a weight.
    "merged_heads": (
        lambda array, num_heads: [_transposed(array, 1, 0).reshape(num_heads, -1, array.shape[0])],
        lambda arrays, num_heads: arrays[0].reshape(-1, arrays[0].shape[-1]).T,
    ),
    "query_key_value": _packed(3),
    "key_value": _packed(2),
    # (2, L, K, Dh / 2): the rotary frequencies of all L blocks, which are (L, 2, K, Dh / 2) as a weight.
    "blocks_second": _single(lambda array: _transposed(array, 1, 0, 2, 3), lambda array: array.transpose(1, 0, 2, 3)),
}
"""{name: (decode, encode)}. `decode(array, num_heads)` returns one array for each path of a rule.
`encode(arrays, num_heads)` returns the array for the file."""


def _transposed(array, *axes):
    if array.ndim != len(axes):
        raise ValueError("wrong number of dimensions")
    return array.transpose(axes)


def with_head_bias(weights):
    """Adds zeros as the bias of the head to {canonical path: array} if the head has none, as CLIP's projection.

    Returns the same dictionary.
    """
    if "predictions/kernel" in weights and "predictions/bias" not in weights:
        weights["predictions/bias"] = np.zeros(weights["predictions/kernel"].shape[1], "float32")
    return weights


def join_gates(weights):
    """Joins `mlp/gate` and `mlp/value` to `mlp/hidden` in {canonical path: array}. Returns the same dictionary.

    The weight `mlp/hidden` of SwiGLU contains gates and values, but some files have separate arrays. Tables of names
    give these arrays the canonical paths `mlp/gate` and `mlp/value`.
    """
    for gate in [path for path in weights if "/mlp/gate/" in path]:
        value, hidden = gate.replace("gate", "value"), gate.replace("gate", "hidden")
        if value in weights and hidden not in weights:  # If not, the weights do not fit any model.
            weights[hidden] = np.concatenate([weights.pop(gate), weights.pop(value)], axis=-1)
    return weights


def split_gates(weights):
    """Inverse of `join_gates`. Returns a new dictionary."""
    separate = {}
    for path, array in weights.items():
        if "/mlp/hidden/" in path:
            gate, value = np.split(array, 2, axis=-1)
            separate |= {path.replace("hidden", "gate"): gate, path.replace("hidden", "value"): value}
        else:
            separate[path] = array
    return separate
