"""A script may keep its ``tf.distribute`` strategy: its scope changes nothing."""

from __future__ import annotations

import pytest

from holdfast.runtime.fit.script_setup import leave_out, leave_out_cluster


def test_scope_of_each_strategy_gives_the_strategy_and_is_told() -> None:
    class Strategy:
        def scope(self) -> None:
            raise AssertionError("TensorFlow's own scope was entered")

    class MirroredStrategy(Strategy):
        pass

    class _Default(Strategy):
        pass

    told: list[str] = []
    leave_out(Strategy, told.append)
    strategy = MirroredStrategy()

    with strategy.scope() as entered:  # type: ignore[func-returns-value]
        assert entered is strategy

    with pytest.raises(AssertionError, match="own scope was entered"):
        _Default().scope()
    assert len(told) == 1
    assert told[0].startswith("the scope of MirroredStrategy is left out")


@pytest.mark.tensorflow
def test_variables_within_a_scope_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tf.distribute.Strategy, "scope", tf.distribute.Strategy.scope)
    leave_out(tf.distribute.Strategy, lambda text: None)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    with strategy.scope():
        variable = tf.Variable(3.0)

    assert type(variable).__name__ == "ResourceVariable"
    assert tf.distribute.has_strategy() is False
    assert float(strategy.run(lambda: variable * 2)) == 6.0


@pytest.mark.tensorflow
def test_strategy_of_several_workers_starts_no_server_and_the_cluster_is_told() -> None:
    import tensorflow as tf

    class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):  # type: ignore[misc]
        """As that of TF_CONFIG, which other tests of this process may have left out already."""

    addresses = tf.train.ClusterSpec({"worker": ["localhost:12345", "localhost:23456"]})
    told: list[str] = []
    leave_out_cluster(Resolver, told.append)

    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        Resolver(addresses, task_type="worker", task_id=0)
    )

    assert strategy.num_replicas_in_sync == 1
    assert told
    assert set(told) == {told[0]}
    assert told[0].startswith("the cluster of TF_CONFIG is left out")
