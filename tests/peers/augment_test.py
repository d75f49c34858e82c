"""The AutoAugment table equals timm's table of the same policy."""

from timm.data.auto_augment import auto_augment_policy_v0

from training.data.augment.policies import AUTOAUGMENT


def test_autoaugment_is_timms_policy_v0():
    # timm has another name for a shift relative to the image's size.
    expected = [
        [(operation.name.removesuffix("Rel"), operation.prob, operation.magnitude) for operation in steps]
        for steps in auto_augment_policy_v0({"img_mean": (128, 128, 128)})
    ]
    assert [list(steps) for steps in AUTOAUGMENT] == expected
