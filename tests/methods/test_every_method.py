"""What every registered method must do, whatever it computes."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from rayfl.errors import UserError
from rayfl.methods import METHODS, FedCO2, FedProto
from rayfl.training.net import is_batch_norm
from tests.support.by_hand import assert_same, federate, net_of, ragged, start

DATA = ragged()
SOME = [[0, 1, 2], [1, 3], [0, 2, 3]]
SETTINGS = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0}
DOCS = Path(__file__).parents[2] / "docs" / "methods"

STATELESS = {"FedAvg", "FedProx"}

each_method = pytest.mark.parametrize("name", METHODS)


# ---- executions


@each_method
@pytest.mark.parametrize("net", ["lenet", "cnn-b"])
@pytest.mark.parametrize("cohorts", [3, SOME], ids=["everyone", "some"])
def test_stacked_equals_loop(name, net, cohorts):
    """To 1e-9 in float64, with clients of 12, 22, 16 and 5 samples in batches of 8."""
    loop, stacked = (
        federate(METHODS[name](), DATA, net_of(name, net), cohorts, execution=execution, **SETTINGS)
        for execution in ("loop", "stacked")
    )
    assert_same(stacked.values(), loop.values(), 1e-9)
    for a, b in zip(stacked.reports, loop.reports):
        assert (a.ids, a.steps, a.up, a.down) == (b.ids, b.steps, b.up, b.down)
        assert a.loss == pytest.approx(b.loss, rel=1e-9)


OPTIONS = [
    ("FedProx", {"mu": 0.1, "norm": "l2"}),
    ("FedBN", {"bn_personal": "affine_only"}),
    ("FedPer", {"personal": "fc_stack"}),
    ("FedProto", {"prototype_weights": "counts", "predict": "head"}),
    ("FediOS", {"basis": "identity", "schedule": "alternating"}),
    ("FediOS", {"rank": 20, "overflow": "reuse", "ortho_reg_on": "relu"}),
    ("FediOS", {"projections": False, "ortho_reg_on": "cos", "alpha": 0.3}),
    ("FediOS", {"basis": "uniform", "individual_extractor": False}),
    ("DCPFL", {"absent": "reuse", "cov_formula": "printed", "eval_head": "global"}),
    ("DCPFL", {"absent": "mask", "min_class_count": 4, "init": "independent", "clamp_virtual": True}),
    ("DCPFL", {"calibrate": False, "server_steps": 2}),
    ("FDSE", {"reg": "code", "attention": "mean", "share_every": 1}),
    ("FDSE", {"ema_init": "bias_corrected", "attn_unit": "block", "share_every": 0}),
    ("FDSE", {"consensus": False, "attention": False}),
    ("FedCO2", {"intra": "to_online", "inter": "offline", "exchange": "last_layer"}),
    ("FedCO2", {"intra": "to_offline", "inter": "online", "offline_init": "independent"}),
    ("FedCO2", {"intra": "none", "inter": "none", "personal": "bn_and_head"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda v: v if isinstance(v, str) else "")
def test_stacked_equals_loop_with_options(name, options):
    loop, stacked = (
        federate(METHODS[name](**options), DATA, net_of(name, "cnn-b"), SOME, execution=execution)
        for execution in ("loop", "stacked")
    )
    assert_same(stacked.values(), loop.values(), 1e-9)


@each_method
def test_fits_of_all_clients_share_a_stack(name, recwarn):
    """No loss captures what belongs to one client, which would keep clients apart."""
    federate(METHODS[name](), DATA, net_of(name, "cnn-b"), 2, execution="stacked")
    assert not [w for w in recwarn if "captures values" in str(w.message)]


# ---- state


@each_method
def test_values_handed_in_are_not_changed(name):
    run = federate(METHODS[name](), DATA, net_of(name, "cnn-b"), 1)
    before = {key: t.clone() for key, t in run.values().items()}
    server, clients = run.server.state, dict(run.host.states)
    run.round([0, 1, 2, 3])
    run.server.state, run.host.states = server, clients
    assert_same(run.values(), before)


@each_method
def test_state_changes_and_is_used(name):
    """Forgetting the clients' state after round 2 changes round 3 (of methods that keep any)."""
    run, forgetful = (federate(METHODS[name](), DATA, net_of(name, "cnn-b"), 2) for _ in range(2))
    before = run.values()
    forgetful.host.states.clear()
    for r in (run, forgetful):
        r.round([0, 1, 2, 3])
    after = run.values()
    personal = [key for key in after if key.startswith("state/clients/")]
    if name in STATELESS:
        assert not personal
        assert_same(forgetful.values(), after)
        return
    assert all(any(not torch.equal(before[k], after[k]) for k in personal if f"/{i}/" in k) for i in range(4))
    assert any(not torch.equal(forgetful.values()[key], after[key]) for key in after)


# ---- traffic


def counts(net):
    """Return the numbers of a net: all, BatchNorm's, BatchNorm's statistics, of both classifiers."""
    w = net.initial(0)
    s = sum(t.numel() for n, t in w.items() if n not in w.train_names)
    b = sum(w[n].numel() for n, m in net.modules_of.items() if is_batch_norm(m) and n in w.train_names)
    stack = w.select(net.names("fc_stack", "head").__contains__).numel()
    return {
        "theta": w.trainable().numel(),
        "s": s,
        "b": b,
        "H": w["head.weight"].numel() + w["head.bias"].numel(),
        "d": w["head.weight"].shape[1],
        "C": w["head.weight"].shape[0],
        "stack": stack,
        "dse": sum(t.numel() for n, t in w.trainable().items() if ".dse_" in n),
        "dse_s": sum(t.numel() for n, t in w.items() if ".dse_" in n and n not in w.train_names),
    }


def same(count):
    return {"weights": count}, {"weights": count}


# method -> numbers (down, up) of a client that owns ``owned`` classes, when all N clients have taken part
DECLARED = {
    "Local": lambda k, owned, n: ({}, {}),
    "FedAvg": lambda k, owned, n: same(k["theta"] + k["s"]),
    "FedProx": lambda k, owned, n: same(k["theta"] + k["s"]),
    "SCAFFOLD": lambda k, owned, n: (
        {"weights": k["theta"] + k["s"], "control": k["theta"]},
        {"step": k["theta"] + k["s"], "control": k["theta"]},
    ),
    "FedBN": lambda k, owned, n: same(k["theta"] - k["b"]),
    "FedPer": lambda k, owned, n: same(k["theta"] - k["H"] + k["s"]),
    "Ditto": lambda k, owned, n: same(k["theta"] + k["s"]),
    "FedProto": lambda k, owned, n: (
        {"prototypes": k["d"] * k["C"]},
        {"prototypes": k["d"] * owned, "owners": owned},
    ),
    "FediOS": lambda k, owned, n: same(k["theta"] + k["s"]),
    "DCPFL": lambda k, owned, n: (
        {"head": k["H"], "means": k["d"] * k["C"]},
        {"counts": owned, "means": owned * k["d"], "covariances": owned * k["d"] * (k["d"] + 1) // 2},
    ),
    "FDSE": lambda k, owned, n: (
        {"weights": k["theta"] - k["dse"] + k["s"] - k["dse_s"], "dse": k["dse"]},
        {"weights": k["theta"] - k["dse"] + k["s"] - k["dse_s"], "dse": k["dse"]},
    ),
    "FedCO2": lambda k, owned, n: (
        {"weights": k["theta"] - k["b"], "heads": (n - 1) * k["stack"]},
        {"weights": k["theta"] - k["b"], "head": k["stack"]},
    ),
}


@each_method
@pytest.mark.parametrize(("precision", "width"), [("float64", 8), ("float32", 4)])
def test_bytes_counted_are_bytes_declared(name, precision, width):
    run = federate(METHODS[name](), DATA, net_of(name, "cnn-b"), 2, precision=precision)
    report, k = run.reports[1], counts(run.host.net)
    for place, i in enumerate(report.ids):
        up, down = ({key: column[place] for key, column in c.items()} for c in (report.up, report.down))
        owned = int((DATA.label_matrix("train")[i] > 0).sum())
        assert owned < k["C"]
        expected = DECLARED[name](k, owned, len(DATA.shards))
        assert down == {key: width * count for key, count in expected[0].items()}
        assert up == {key: width * count for key, count in expected[1].items()}


def test_bytes_of_fedco2_without_inter_client_transfer_or_with_the_last_layer():
    plain = federate(FedCO2(inter="none"), DATA, "cnn-b", 2)
    k = counts(plain.host.net)
    assert plain.reports[1].up == plain.reports[1].down == {"weights": [8 * (k["theta"] - k["b"])] * 4}
    small = federate(FedCO2(exchange="last_layer"), DATA, "cnn-b", [[0, 1], [0, 2]])
    foreign = 8 * 3 * k["H"]  # there is one of every client from the start: at first the initial one
    assert [r.down["heads"] for r in small.reports] == [[foreign, foreign]] * 2
    assert small.reports[1].up["head"][1] == 8 * k["H"]


# ---- views


WITH_GLOBAL = {"FedAvg", "FedProx", "SCAFFOLD", "Ditto", "FediOS"}


@each_method
def test_views_are_scored_as_declared(name):
    """Before the first round, after training and after aggregation, of clients old and new."""
    run = start(METHODS[name](), DATA, net_of(name, "cnn-b"))
    found = [run.host.evaluate(0, *run.server.download(range(4)), range(4), ["test"])]
    run.round([0, 2], score_parts=("test",))
    found.append(run.reports[0].scores)
    found.append(run.host.evaluate(0, *run.server.download(range(4)), range(4), ["test"]))
    assert [set(f) for f in found] == [{0, 1, 2, 3}, {0, 2}, {0, 1, 2, 3}]
    views = METHODS[name].views
    assert ("global" in views) == (name in WITH_GLOBAL)
    assert views[0] == "personal"
    for scores in found:
        for parts in scores.values():
            assert set(parts["test"]) == set(views)
            for view, one in parts["test"].items():
                assert (one.loss is None) == (view in run.host.method.views_without_loss)


def test_only_distances_to_prototypes_have_no_loss():
    without = {name for name, method in METHODS.items() if method().views_without_loss}
    assert without == {"FedProto"}
    assert not FedProto(predict="head").views_without_loss


def test_global_views_are_the_same_model_for_everyone():
    x = torch.tensor(DATA.pool.images[:4]).double()
    for name in WITH_GLOBAL:
        run = federate(METHODS[name](), DATA, "lenet", [[0, 1]])
        assert torch.equal(run.scores(0, x)["global"], run.scores(3, x)["global"])


# ---- options and documents


BAD = [
    ("FedProx", "mu", -0.1),
    ("FedProx", "mu", float("nan")),
    ("FedProx", "norm", "l1"),
    ("SCAFFOLD", "server_lr", 0.0),
    ("SCAFFOLD", "server_lr", float("inf")),
    ("FedBN", "bn_personal", "none"),
    ("FedPer", "personal", "conv"),
    ("Ditto", "mu", -1.0),
    ("FedProto", "lam", -1.0),
    ("FedProto", "predict", "both"),
    ("FedProto", "prototype_weights", "samples"),
    ("FediOS", "alpha", 1.5),
    ("FediOS", "lam", -0.1),
    ("FediOS", "basis", "random"),
    ("FediOS", "rank", 0),
    ("FediOS", "overflow", "wrap"),
    ("FediOS", "ortho_reg_on", "features"),
    ("FediOS", "schedule", "both"),
    ("DCPFL", "lam", -0.1),
    ("DCPFL", "num_virtual", 0),
    ("DCPFL", "server_lr", 0.0),
    ("DCPFL", "server_steps", 0),
    ("DCPFL", "calib_epochs", 0),
    ("DCPFL", "calib_batch", 0),
    ("DCPFL", "calib_lr", -1.0),
    ("DCPFL", "calib_steps", 0),
    ("DCPFL", "cov_formula", "exact"),
    ("DCPFL", "absent", "ignore"),
    ("DCPFL", "min_class_count", 0),
    ("DCPFL", "eval_head", "both"),
    ("DCPFL", "init", "random"),
    ("FDSE", "lam", -0.1),
    ("FDSE", "tau", 0.0),
    ("FDSE", "beta", float("nan")),
    ("FDSE", "gamma", 1.0),
    ("FDSE", "unit", "layer"),
    ("FDSE", "attn_unit", "layer"),
    ("FDSE", "reg", "none"),
    ("FDSE", "ema_init", "zero"),
    ("FDSE", "share_every", -1),
    ("FDSE", "unseen_epochs", 0),
    ("FDSE", "unseen_lr", -1.0),
    ("FedBN", "unseen_passes", 0),
    ("FedCO2", "mu", -1.0),
    ("FedCO2", "mutual_epochs", 0),
    ("FedCO2", "adapt_epochs", 0),
    ("FedCO2", "kd_temperature", 0.0),
    ("FedCO2", "bn_personal", "some"),
    ("FedCO2", "intra", "online"),
    ("FedCO2", "inter", "to_online"),
    ("FedCO2", "personal", "fc"),
    ("FedCO2", "exchange", "conv"),
    ("FedCO2", "offline_init", "zero"),
]


def options_of(name):
    return inspect.signature(METHODS[name]).parameters


@pytest.mark.parametrize(("name", "option", "value"), BAD)
def test_bad_options_are_refused_by_name(name, option, value):
    with pytest.raises(UserError, match=re.escape(f"method.{option} is {value!r}: it must be ")):
        METHODS[name](**{option: value})


def test_every_option_is_checked():
    options = {
        (name, option)
        for name in METHODS
        for option, parameter in options_of(name).items()
        if not isinstance(parameter.default, bool)  # every truth value is fine
    }
    assert {(name, option) for name, option, _ in BAD} == options


@each_method
def test_options_are_kept_and_documented(name):
    """Under their own names, from which a run's configuration is written; in the help, and on the page."""
    method, page = METHODS[name](), (DOCS / f"{name.lower()}.md").read_text()
    described = (METHODS[name].__doc__ or "").partition("Args:")[2]
    for option, parameter in options_of(name).items():
        assert getattr(method, option) == parameter.default
        assert f"        {option}: " in described
        assert f"| `{option}` | {'none' if parameter.default is None else parameter.default} |" in page
    assert f"[{name}]({name.lower()}.md)" in (DOCS / "README.md").read_text()


NOT_TO_BE_MISSED = {
    "DCPFL": "For a class with one sample the mean is that sample's feature vector",
    "FediOS": "## The regulariser of eq. 11 is zero\n\nFor projections onto orthogonal subspaces",
}


@each_method
def test_pages_say_what_deviates_and_what_uploads_reveal(name):
    page = (DOCS / f"{name.lower()}.md").read_text()
    for heading in ("## Deviations", "## What uploads can reveal"):
        (text,) = re.findall(rf"^{heading}\n+([^#]+)", page, re.MULTILINE)
        assert text.strip()
    assert NOT_TO_BE_MISSED.get(name, "") in page


def test_options_of_the_default_method_keep_their_meaning():
    """The command line takes over options of one name when it changes from FedBN to another class."""
    for option, parameter in options_of("FedBN").items():
        defaults = {options_of(name)[option].default for name in METHODS if option in options_of(name)}
        assert defaults == {parameter.default}


def test_defaults_of_the_averages():
    uniform = {name for name, method in METHODS.items() if method.averaging == "uniform"}
    assert uniform == {"SCAFFOLD", "FedCO2", "FDSE"}


@each_method
def test_averaging_is_obeyed(name):
    """Clients have unequal sizes, so the two averages differ where a method averages."""
    method = METHODS[name](**({"consensus": False} if name == "FDSE" else {}))
    net = net_of(name, "lenet")
    runs = [federate(method, DATA, net, 1, averaging=a) for a in ("samples", "uniform")]
    a, b = ({k: v for k, v in run.values().items() if k.startswith("state/server/weights")} for run in runs)
    alike = ("running_var", "dfe_bias", "dfe_conv.bias")  # biases before BatchNorm have no gradient
    assert all(not torch.equal(a[k], b[k]) for k in a if not k.endswith(alike))
    assert bool(a) == (name not in ("Local", "FedProto", "DCPFL"))
