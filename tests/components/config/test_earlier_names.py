"""Recipes and fingerprints of earlier versions: keys are read, and hashed as they were."""

import pytest
import yaml

from components.config.schema.earlier_names import restore_names, update_names, update_path

EARLIER = yaml.safe_load("""
{why: A test., home: juwels, works: [],
 data: {surplus: dealt, sources: {home: {stand_in: eu24/de}, works: {files: []}}},
 parallelism: {expert_bound: 1.5, expert_divisor: copies, tensor: 2},
 scale: {shrink: {carriers: {python_docs: {share: 0.5}}}},
 children: {why: {data: {surplus: refused}}}}
""")
PRESENT = yaml.safe_load("""
{description: A test., reference_cluster: juwels, citations: [],
 data: {on_exhausted: redistribute,
        sources: {home: {placeholder: eu24/de}, works: {files: []}}},
 parallelism: {expert_capacity_factor: 1.5, expert_grad_average: replicas, tensor: 2},
 scale: {shrink: {filler: {python_docs: {share: 0.5}}}},
 children: {why: {data: {on_exhausted: refuse}}}}
""")


def test_keys_get_present_names_and_sources_keep_theirs() -> None:
    assert update_names(EARLIER) == PRESENT
    assert update_names(PRESENT) == PRESENT


def test_a_lock_and_an_option_of_a_group_are_updated_below_their_sections() -> None:
    values = {"data.surplus": "dealt", "why": "x"}
    lock = update_names({"asked": {"values": values}, "composed": {"home": "juwels"}})
    present = {"data.on_exhausted": "redistribute", "description": "x"}
    assert lock == {"asked": {"values": present}, "composed": {"reference_cluster": "juwels"}}
    answer = {"data.on_exhausted": "redistribute"}
    assert update_names({"set": {"data.surplus": "dealt"}}) == {"set": answer}
    option = {"surplus": "dealt", "sources": {"en": {"stand_in": None}}}
    updated = {"on_exhausted": "redistribute", "sources": {"en": {"placeholder": None}}}
    assert update_names(option, "data") == updated
    path = update_path("composed.data.sources.en.stand_in")
    assert path == "composed.data.sources.en.placeholder"


def test_a_key_with_its_present_name_is_refused_later() -> None:
    both = {"why": "x", "description": "y"}
    assert update_names(both) == both


@pytest.mark.parametrize(
    ("present", "earlier"),
    [
        ({"data.on_exhausted": "refuse"}, {"data.surplus": "refused"}),
        ({"parallelism.expert_grad_average": "ranks"}, {"parallelism.expert_divisor": "ranks"}),
        ({"scale.shrink.filler.a.share": 0.5}, {"scale.shrink.carriers.a.share": 0.5}),
        ({"data.phases.a.shares.description": 1.0}, {"data.phases.a.shares.description": 1.0}),
    ],
)
def test_fingerprints_hash_the_earlier_names(present, earlier):
    assert restore_names(present) == earlier
