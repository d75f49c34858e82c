"""Assigns objects to queries. Shapes: N problems, M objects, Q queries."""

import keras
import tensorflow as tf
from keras import ops

if keras.backend.backend() == "jax":
    import jax

_NOT_FINITE = 1e9  # Cost that replaces NaN and infinity.


def match(costs, is_object):
    """Assigns each object to a query of its own, such that the sum of the costs is as small as possible.

    This is the method of shortest augmenting paths (Crouse, doi.org/10.1109/TAES.2016.140952), which also SciPy's
    `linear_sum_assignment` uses. First, each query goes to one of the objects that prefer it to all other queries.
    Then, the remaining objects are added one by one: Dijkstra's algorithm finds the cheapest chain of reassignments
    from the object to a free query. Each iteration takes one step of each problem. If all objects prefer the same
    queries, there are about M^2 / 2 iterations. If they prefer different queries, there are few.

    Args:
        costs: (N, M, Q), with M <= Q. NaN and infinity are replaced by 1e9, and minus infinity by -1e9.
        is_object: bool (N, M). `False` for padding, which gets no query.

    Returns:
        The query of each object, int32 (N, M). 0 for padding.
    """
    num_objects, num_queries = ops.shape(costs)[1:]
    costs = ops.nan_to_num(costs, nan=_NOT_FINITE, posinf=_NOT_FINITE, neginf=-_NOT_FINITE)
    is_best = _is(ops.argmin(costs, axis=-1), num_queries) & is_object[:, :, None]
    owners = ops.where(ops.any(is_best, axis=1), ops.cast(ops.argmax(is_best, axis=1), "int32"), -1)
    is_waiting = is_object & ~ops.any(is_best & _is(owners, num_objects, axis=1), axis=-1)
    # A chain starts at an additional query, whose owner is the object that is being added.
    costs, owners = ops.pad(costs, ((0, 0), (0, 0), (0, 1))), ops.pad(owners, ((0, 0), (0, 1)))
    zeros, start = ops.zeros_like(costs[:, 0]), ops.full_like(owners, num_queries)
    state = {
        "owners": owners,  # The object of each query. -1: the query is free.
        "is_waiting": is_waiting,
        "prices": zeros,  # What has to be subtracted from the costs, so that each object prefers its query.
        "distances": zeros,  # Cost of the cheapest known chain to each query.
        "previous": start,  # The last query but one of this chain.
        "is_final": ops.zeros_like(owners, dtype="bool"),  # Whether no cheaper chain exists.
        "query": start[:, 0],  # Where the search, or the reassignment, is.
        "distance": zeros[:, 0],  # Its cost.
        "is_found": ops.ones_like(is_waiting[:, 0]),  # Whether the chain is complete, so that objects are reassigned.
    }
    state = ops.while_loop(
        lambda state: ops.any(state["is_waiting"]) | ops.any(~state["is_found"] | (state["query"] != num_queries)),
        lambda state: _search(_reassign(state), costs),
        state,
    )
    return ops.cast(ops.argmax(_is(state["owners"][:, :-1], num_objects, axis=1), axis=-1), "int32")


def _reassign(state):
    """Takes one step back along each complete chain. If this was the last one, the next object is added."""
    owners, is_waiting, is_found = (state[name] for name in ("owners", "is_waiting", "is_found"))
    start = owners.shape[1] - 1
    is_here = is_found[:, None] & _is(state["query"], start + 1)
    before = _at(state["query"], state["previous"])
    owners = ops.where(is_here, _at(before, owners)[:, None], owners)
    query = ops.where(is_found, before, state["query"])
    begins = is_found & (query == start) & ops.any(is_waiting, axis=1)
    added = ops.cast(ops.argmax(is_waiting, axis=1), "int32")
    is_start = _is(query, start + 1) & begins[:, None]
    return state | {
        "owners": ops.where(is_start, added[:, None], owners),
        "is_waiting": is_waiting & ~(begins[:, None] & _is(added, ops.shape(is_waiting)[1])),
        "distances": ops.where(begins[:, None], float("inf"), state["distances"]),
        "is_final": ops.where(begins[:, None], is_start, state["is_final"]),
        "query": query,
        "distance": ops.where(begins, 0.0, state["distance"]),
        "is_found": is_found & ~begins,
    }


def _search(state, costs):
    """Takes one step of Dijkstra's algorithm: chains via the nearest query are compared with the known ones."""
    names = ("owners", "prices", "distances", "is_final", "query", "distance", "is_found")
    owners, prices, distances, is_final, query, distance, is_found = (state[name] for name in names)
    costs = gather(costs, _at(query, owners)) - prices
    costs = costs + (distance - _at(query, costs))[:, None]
    is_shorter = ~is_found[:, None] & ~is_final & (costs < distances)
    distances = ops.where(is_shorter, costs, distances)
    open_distances = ops.where(is_final, float("inf"), distances)
    query = ops.where(is_found, query, ops.cast(ops.argmin(open_distances, axis=1), "int32"))
    distance = ops.where(is_found, distance, ops.min(open_distances, axis=1))
    ends = ~is_found & (_at(query, owners) < 0)
    return state | {
        "prices": ops.where(ends[:, None], prices + ops.minimum(distances - distance[:, None], 0.0), prices),
        "distances": distances,
        "previous": ops.where(is_shorter, state["query"][:, None], state["previous"]),
        "is_final": is_final | (~is_found[:, None] & _is(query, is_final.shape[1])),
        "query": query,
        "distance": distance,
        "is_found": is_found | ends,
    }


def _is(indices, count, axis=-1):
    """Whether each of `count` numbers is the index, bool. The numbers are on a new axis. The index -1 is none."""
    return ops.one_hot(indices, count, axis=axis, dtype="bool")


def _at(indices, values):
    """The value at an index of each problem, (N,), of values (N, K)."""
    return ops.sum(ops.where(_is(indices, values.shape[1]), values, ops.zeros_like(values)), axis=1)


def gather(values, indices):
    """Reads values (B, K, ...) at indices (B, ...), which are those of each image or problem."""
    if keras.backend.backend() == "jax":
        return jax.vmap(lambda values, indices: values[indices])(values, indices)
    return tf.gather(values, indices, batch_dims=1)  # `ops.take_along_axis` would repeat the indices for each value.
