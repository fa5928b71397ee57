"""The few-shot learner as a whole: every method, on disk, and on real mini-ImageNet features where they are present."""

import random

import numpy as np
import pytest

from faverage.fscil import FewShotLearner, PrototypeHead, forgetting, macro_f1, session_metrics
from faverage.fscil.heads import learn_temperature, unit
from faverage.fscil.metrics import summary
from helpers_learner import World, learned
from helpers_model import mutated
from helpers_paths import FEATURES

FUSERS = [
    "afa",
    "afa-paper",
    "prototypes",
    "no-fine-tuning",
    "arithmetic",
    "vote",
    "log-pool",
    "logistic",
    "shallow-net",
    "performance",
    "mixture-of-experts",
]


@pytest.mark.parametrize("fuser", FUSERS)
def test_every_method_learns_sessions_of_any_size(fuser: str) -> None:
    learner, world = learned(fuser)
    X, y = world.draw(list(range(10)), 40)
    p = learner.predict_proba(X)
    assert p.shape == (400, 10) and np.allclose(p.sum(1), 1, atol=1e-4)
    accuracy = (learner.predict(X) == y).mean()
    assert accuracy > (0.4 if fuser == "no-fine-tuning" else 0.6)
    if fuser == "no-fine-tuning":
        assert set(learner.predict(X)) <= set(range(6))


@pytest.mark.parametrize("fuser", [name for name in FUSERS if name != "no-fine-tuning"])
@pytest.mark.parametrize("members", ["views", "sessions"])
def test_every_method_begins_with_nothing(fuser: str, members: str) -> None:
    world = World()
    learner = FewShotLearner(fuser=fuser, members=members)
    for session in ([0], [1, 2], [3]):
        learner.learn_session(*world.draw(session, 5))
    X, y = world.draw([0, 1, 2, 3], 40)
    p = learner.predict_proba(X)
    assert learner.classes == [0, 1, 2, 3] and learner.sessions == [[], [0], [1, 2], [3]]
    assert p.shape == (160, 4) and np.allclose(p.sum(1), 1, atol=1e-4)
    assert (learner.predict(X) == y).mean() > 0.7


def test_labels_of_any_type_in_any_order() -> None:
    world = World()
    names = np.array(list("jihgfedcba"))
    learner = FewShotLearner().fit_base(*(lambda X, y: (X, names[y]))(*world.draw([0, 1, 2], 40)))
    X, y = world.draw([5, 3], 5)
    learner.learn_session(X, names[y])
    assert learner.classes == ["h", "i", "j", "e", "g"]
    X, y = world.draw([5], 20)
    assert (learner.predict(X) == "e").mean() > 0.6


def test_backbone_is_any_function() -> None:
    world = World()
    learner = FewShotLearner(backbone=lambda images: images.reshape(len(images), -1)[:, :24])
    X, y = world.draw([0, 1, 2], 30)
    images = np.concatenate([X, X], 1).reshape(len(X), 6, 8)
    learner.fit_base(images, y).learn_session(images[:5] + 1, ["new"] * 5)
    assert learner.predict_proba(images).shape == (90, 4)


@pytest.mark.parametrize("fuser", ["afa", "log-pool", "prototypes", "arithmetic"])
@pytest.mark.parametrize("scope", ["all", "session"])
def test_save_and_load(tmp_path, fuser: str, scope: str) -> None:
    learner, world = learned(fuser, scope=scope)
    X, _ = world.draw(list(range(10)), 5)
    learner.save(tmp_path / "model")
    learner.save(tmp_path / "model")  # over an old one
    again = FewShotLearner.load(tmp_path / "model")
    assert np.allclose(again.predict_proba(X), learner.predict_proba(X), atol=1e-6)
    assert again.sessions == learner.sessions and [p.name for p in tmp_path.iterdir()] == ["model"]
    shots, _ = world.draw([3], 5)
    more = [m.learn_session(shots + 2, ["ten"] * 5).predict_proba(X) for m in (learner, again)]
    assert np.allclose(*more, atol=1e-5)


def test_any_mutation_of_a_learner_is_refused_or_answers_with_numbers(tmp_path) -> None:
    learner, world = learned("afa", temperature=16.0)
    X, _ = world.draw(list(range(10)), 2)
    learner.save(tmp_path / "model")
    rng, accepted = random.Random(0), 0
    for _ in range(200):
        file = tmp_path / "model" / rng.choice(["learner.safetensors", "learner.safetensors", "fuser.safetensors"])
        content = file.read_bytes()
        file.write_bytes(mutated(content, rng))
        try:
            assert np.isfinite(FewShotLearner.load(tmp_path / "model").predict_proba(X)).all()
            accepted += 1
        except (ValueError, FileNotFoundError):
            pass
        file.write_bytes(content)
    assert 20 < accepted < 140


def test_a_learner_file_may_be_overwritten_while_it_is_in_use(tmp_path) -> None:
    learner, world = learned()
    X, _ = world.draw([0, 6], 5)
    again = FewShotLearner.load(learner.save(tmp_path / "model"))
    expected = again.predict_proba(X)
    file = tmp_path / "model" / "learner.safetensors"
    file.write_bytes(bytes(file.stat().st_size))  # in place: a mapped file would change with it
    assert np.array_equal(again.predict_proba(X), expected)


def test_same_seed_same_predictions() -> None:
    X, _ = World(1).draw(list(range(10)), 5)
    first, again = (learned()[0].predict_proba(X) for _ in range(2))
    assert np.array_equal(first, again)


@pytest.mark.parametrize("members", ["views", "sessions"])
def test_explanation_names_members_and_classes(members: str) -> None:
    learner, _ = learned(members=members)
    table = learner.explain().models.to_pandas()
    expected = {"base head", "session 1", "session 2", "session 3"}
    assert set(table["model"]) == (expected if members == "sessions" else {"base head", "prototypes", "ridge"})
    assert table.groupby("class")["share"].sum().round(5).eq(1).all()
    with pytest.raises(ValueError, match="weights to read"):
        learned("prototypes")[0].explain()


def test_prototype_head_is_the_papers_softmin() -> None:
    prototypes = unit(np.abs(np.random.default_rng(0).normal(size=(3, 5))))
    head = PrototypeHead(prototypes, temperature=4.0)
    x = np.abs(np.random.default_rng(1).normal(size=(6, 5)))
    distances = ((unit(x)[:, None] - prototypes) ** 2).sum(-1)
    expected = np.exp(-4 * distances) / np.exp(-4 * distances).sum(1, keepdims=True)
    assert np.allclose(head.scores(x), expected)


def test_temperature_minimises_the_loss() -> None:
    world = World()
    X, y = world.draw([0, 1, 2], 50)
    prototypes = np.stack([unit(X[y == c]).mean(0) for c in range(3)])

    def loss(tau: float) -> float:
        p = PrototypeHead(prototypes, tau).scores(X)[np.arange(len(y)), y]
        return float(-np.log(p).sum() + 5 * np.log(tau / 16) ** 2)

    best = learn_temperature(PrototypeHead(prototypes, 16.0), X, y)
    assert loss(best) <= min(loss(best * 1.1), loss(best / 1.1))


def test_hold_out_takes_at_most_a_sixth() -> None:
    numbers = np.repeat([0, 1, 2], [600, 30, 3])
    known = FewShotLearner().fit_base(np.random.default_rng(0).random((633, 4)), numbers).known
    assert np.bincount(known.labels).tolist() == [20, 5, 1] and not known.shot.any()
    assert known.counts.tolist() == [580, 25, 2]
    with pytest.raises(ValueError, match="one example"):
        FewShotLearner().fit_base(np.eye(3), [0, 0, 1])


def test_metrics_by_hand() -> None:
    y = np.array([0, 0, 1, 1, 2, 2])
    said = np.array([0, 0, 1, 0, 2, 0])
    m = session_metrics(y, said, [[0, 1], [2]])
    assert m["accuracy"] == pytest.approx(4 / 6) and m["base"] == 0.75 and m["new"] == 0.5
    assert m["harmonic"] == pytest.approx(0.6) and m["by_session"] == [0.75, 0.5]
    assert m["f1"] == pytest.approx((4 / 6 + 2 / 3 + 2 / 3) / 3)
    from sklearn.metrics import f1_score

    assert m["f1"] == pytest.approx(f1_score(y, said, average="macro"))
    assert macro_f1(y, said, 4) == pytest.approx(m["f1"] * 3 / 4)
    base = session_metrics(np.array([0, 1]), np.array([0, 1]), [[0, 1]])
    assert base["new"] is None and base["harmonic"] is None
    history = [{"by_session": [0.9]}, {"by_session": [0.8, 0.6]}, {"by_session": [0.7, 0.7, 0.5]}]
    assert forgetting(history) == pytest.approx((0.2 - 0.1) / 2)


def test_metrics_over_all_sessions_by_hand() -> None:
    keys = ("accuracy", "f1", "base", "new", "harmonic", "by_session")
    sessions = [
        (0.9, 0.8, 0.9, None, None, [0.9]),
        (0.7, 0.6, 0.8, 0.4, 8 / 15, [0.8, 0.4]),
        (0.5, 0.4, 0.6, 0.3, 0.4, [0.6, 0.2, 0.4]),
    ]
    history = [dict(zip(keys, values, strict=True)) for values in sessions]
    # R = 4 // 2; gAcc of α = 0, 1, 2: the means of (0, 0.4, 0.3), of (0.9, 0.6, 0.4) and of (0.9, 2 / 3, 0.45)
    curve = [0.7 / 3, 1.9 / 3, (1.35 + 2 / 3) / 3]
    assert summary(history, [4, 2, 2]) == pytest.approx(
        {
            "average_accuracy": 0.7,
            "average_f1": 0.6,
            "harmonic": 0.4,
            "average_harmonic": (8 / 15 + 0.4) / 2,
            "gacc_auc": (curve[0] / 2 + curve[1] + curve[2] / 2) / 2,
            "base": 0.6,
            "new": 0.3,
            "performance_drop": 0.4,
            "forgetting": (0.3 + 0.2) / 2,
        }
    )
    assert summary(history, [1, 2, 2])["gacc_auc"] is None  # there is no R
    alone = summary(history[:1], [4])
    assert alone["average_accuracy"] == 0.9 and alone["performance_drop"] is alone["average_harmonic"] is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: FewShotLearner(fuser="magic"), "unknown fuser 'magic'"),
        (lambda w: FewShotLearner(rehearsal="all"), "rehearsal must be"),
        (lambda w: FewShotLearner(scope="some"), "scope must be"),
        (lambda w: FewShotLearner(members="heads"), "members must be"),
        (lambda w: FewShotLearner(temperature=0), "temperature must be"),
        (lambda w: FewShotLearner(temperature=float("inf")), "temperature must be"),
        (lambda w: FewShotLearner(stand_ins=0), "stand_ins and hold_out"),
        (lambda w: FewShotLearner(stand_ins=10**9), "stand_ins must be at most"),
        (lambda w: FewShotLearner().predict(np.ones((2, 3))), "knows no class yet"),
        (lambda w: FewShotLearner().known, "knows no class yet"),
        (lambda w: FewShotLearner().familiarity(np.ones((2, 3))), "no class is known yet"),
        (lambda w: FewShotLearner(fuser="no-fine-tuning").learn_session(np.eye(3), [0, 1, 2]), "no base head"),
        (lambda w: FewShotLearner().fit_base(np.ones((4, 3)), [0, 0, 0, 0]), "at least two classes"),
        (lambda w: FewShotLearner().fit_base(np.ones((4, 3, 3)), [0, 0, 1, 1]), "shape"),
        (lambda w: FewShotLearner().fit_base(np.ones((4, 3, 3, 3)), [0, 0, 1, 1]), "images need a backbone"),
        (lambda w: FewShotLearner().fit_base(np.full((4, 3), np.nan), [0, 0, 1, 1]), "finite"),
        (lambda w: FewShotLearner().save("x"), "class"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(World())


@pytest.mark.data
@pytest.mark.skipif(not FEATURES.exists(), reason="no mini-ImageNet features under FAVERAGE_DATA")
def test_real_features_one_session() -> None:
    data = {name: array.astype(np.float32) for name, array in np.load(FEATURES).items()}
    results = {}
    for fuser in ("afa", "prototypes"):
        learner = FewShotLearner(fuser=fuser)
        learner.fit_base(
            data["base_memory"],
            data["base_memory_labels"].astype(int),
            head=(data["base_head_weight"], data["base_head_bias"]),
            prototypes=data["base_prototypes"],
        )
        new = data["novel_labels"] < 65
        learner.learn_session(data["novel"][new], data["novel_labels"][new].astype(int))
        seen = data["test_labels"] < 65
        y = data["test_labels"][seen].astype(int)
        results[fuser] = session_metrics(y, learner.predict(data["test"][seen]), [range(60), range(60, 65)])
    assert results["prototypes"]["f1"] == pytest.approx(0.692, abs=0.002)
    assert results["afa"]["f1"] > results["prototypes"]["f1"]
