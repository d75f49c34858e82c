"""Plans trainings on simulated devices. Run by `distribution_test.py`, with Keras on JAX.

    python -m tests.training.plans_program REQUESTS

REQUESTS is a JSON object {name: (number of devices, changes of the recipe "digits")}. JAX can only split a CPU before
it computes, so requests with several devices come first. The results, {name: plan or error}, are printed as JSON.
"""

import dataclasses
import json
import sys

from training import recipes
from training.errors import InputError
from training.planning.plan import plan, with_devices
from training.recipe.assignments import override


def main(requests):
    results = {}
    for name, (devices, assignments) in json.loads(requests).items():
        try:
            found = plan(with_devices(override(recipes.load("digits"), assignments), devices), images=1797, classes=10)
        except InputError as error:
            results[name] = {"error": str(error)}
            continue
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        flops = {"total_flops": found.total_flops, "expected_flops": found.expected_flops}
        results[name] = fields | flops | {"recipe": None, "memory": dataclasses.asdict(found.memory)}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
