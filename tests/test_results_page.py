"""The pages of results say what the summaries in docs/results/ say, in their tables and their sentences."""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

import pytest

from docs.results_page import (
    CIFAR100,
    COMMITS,
    DCPFL,
    DCPFL_ROWS,
    DETAILS,
    DIRICHLET,
    EXAMPLES,
    FDSE_LOCAL,
    FDSE_SEEDS,
    FDSE_T1,
    FDSE_T1_SEEDS,
    FDSE_T3,
    FEDCO2_T3,
    FEDIOS,
    FEDIOS_ROWS,
    FEDIOS_SEEDS,
    FOLDER,
    LONG,
    MARKER,
    MILESTONES,
    NIID,
    NIID_ROWS,
    OFFICE,
    PAGE,
    PAGES,
    PATHOLOGICAL,
    PFLLIB,
    PFLLIB_CURVES,
    PFLLIB_ROWS,
    T3_SEEDS,
    TABLES,
    UNVERIFIED,
    USED,
    Run,
    all_told,
    cell,
    each_seed,
    embedded,
    embedded_runs,
    embedded_values,
    feddbe_runs,
    made,
    made_by,
    mean,
    niid_best,
    over_seeds,
    pfllib_pairs,
    printed,
    printed_twice,
    published,
    run,
    setting,
    tables,
    with_marks,
    written,
)
from rayfl.jobs.table_file import Table
from rayfl.methods import METHODS
from rayfl.report.printed import known_tables
from rayfl.report.significance import LEVEL
from rayfl.report.text import mean_and_std

TEXTS = {path.stem: path.read_text() for path in PAGES}


def ranked(values: Mapping[str, float]) -> str:
    """Return names and accuracies in [0, 1], the highest first: "FDSE 76.1, Ditto 75.7"."""
    order = sorted(values, key=lambda name: -values[name])
    return ", ".join(f"{name} {cell(values[name])}" for name in order)


def names(order: str, *without: str) -> list[str]:
    """Return the names of ``ranked`` in their order."""
    found = [text.rpartition(" ")[0] for text in order.split(", ")]
    return [name for name in found if name not in without]


def ranked_printed(table: str, rows: Mapping[str, str], column: str) -> str:
    """Return names and what a paper prints of these rows, the highest first."""
    shown = {name: printed(table, row, column)[0].split()[0] for name, row in rows.items()}
    return ", ".join(f"{name} {shown[name]}" for name in sorted(shown, key=lambda name: -float(shown[name])))


def in_paper(table: str, rows: list[str], column: str) -> str:
    return f"The paper prints {ranked_printed(table, dict(zip(rows, rows)), column)}."


def of(table: str, rows: list[str], column: str, choice: str = "headline") -> str:
    return ranked({row: run(table, row, column).value(choice) for row in rows})


def paper(table: str, rows: list[str], column: str) -> dict[str, float]:
    return {row: float(printed(table, row, column)[0].split()[0]) / 100 for row in rows}


def gap(first: float, second: float) -> str:
    return f"{100 * (first - second):.1f} points"


def rounds(table: str, row: str, column: str, file: str) -> str:
    """Say how many of the paper's rounds a run has had."""
    return (
        f"{run(table, row, column).completed} of the paper's {setting(file, row, column, 'rounds'):,} rounds"
    )


def t3(column: str) -> dict[str, str]:
    own, per = run("fedco2_t3", "Fed-CO2", column), run("fedco2_t3", "FedPer", column)
    beside = paper("fedco2_t3", ["FedPer"], column)["FedPer"]
    better = {c: max(own.value(c, view) for view in ("online", "offline")) for c in ("headline", "last_k")}
    return {
        "both": f"Both models together have {gap(own.value('headline'), better['headline'])} more than the "
        f"better one alone by the reported metric, and {gap(own.value('last_k'), better['last_k'])} by the "
        "last five evaluations.",
        "fedper": f"FedPer is {gap(per.value('headline'), beside)} above its printed accuracy.",
    }


def t3_values(column: str, choice: str) -> dict[str, list[float]]:
    """Return what the rows with three seeds have with each of them."""
    return {row: each_seed("fedco2_t3", row, column, choice=choice) for row in T3_SEEDS}


def t3_seeds() -> dict[str, str]:
    """What three seeds say."""
    for column in FEDCO2_T3:
        last, headline = (t3_values(column, choice) for choice in ("last_k", "headline"))
        ahead = [a - b for a, b in zip(last["Fed-CO2"], last["FedPer"])]
        before = [a > b for a, b in zip(headline["FedPer"], headline["Fed-CO2"])]
        assert mean(ahead) > 0
        if column == PATHOLOGICAL:
            assert before == [True, True, True]
            assert [each > 0 for each in ahead] == [True, False, True]
            assert all(mean(each["FedBN"]) < mean(each["SingleSet"]) for each in (last, headline))
            assert last["FedBN"][0] > last["SingleSet"][0]
            beside = paper("fedco2_t3", T3_SEEDS, column)
            assert beside["FedBN"] > beside["SingleSet"]
        else:
            assert 0 < ahead[0] < 0.001
            assert before == [True, False, True]
            assert mean(headline["FedPer"]) > mean(headline["Fed-CO2"])
            said = (
                f"ahead by {100 * ahead[1]:.1f} and {gap(ahead[2], 0)} with the others. By the reported "
                "metric, which counts earlier rounds too, FedPer is ahead in the mean and with two of the "
                "seeds."
            )
    return {"three ahead": said}


def t3_dirichlet() -> dict[str, str]:
    """What only the column with all rows has."""
    rows = FEDCO2_T3[DIRICHLET]
    runs = {row: run("fedco2_t3", row, DIRICHLET) for row in rows}
    beside = paper("fedco2_t3", rows, DIRICHLET)

    def later(row: str) -> str:
        return gap(*sorted((runs[row].value(c) for c in ("last_k", "headline")), reverse=True))

    def ahead(row: str) -> str:
        here = gap(*(runs[r].value("last_k") for r in (row, "SingleSet")))
        return f"{here}{{}} (printed: {gap(beside[row], beside['SingleSet'])})"

    grown = {row for row in rows if runs[row].value("last_k") > runs[row].value("headline")}
    assert {"FedBN", "FedAvg", "FedProx"} <= grown
    assert not {"FedRoD", "FedPer"} & grown
    return {
        "later": f"In the last five evaluations FedBN has {later('FedBN')} more than by the reported metric, "
        f"FedAvg {later('FedAvg')} and FedProx {later('FedProx')}, while FedRoD has {later('FedRoD')} less "
        f"and FedPer {later('FedPer')} less.",
        "ahead": f"FedRoD is ahead by {ahead('FedRoD').format(' in the last five evaluations')}, Fed-CO2 by "
        f"{ahead('Fed-CO2').format('')} and FedPer by {ahead('FedPer').format('')}.",
    }


def t3_long() -> dict[str, str]:
    """What all 1,500 rounds say of Fed-CO2 and FedPer."""
    own, per = run(LONG, "Fed-CO2", DIRICHLET), run(LONG, "FedPer", DIRICHLET)
    beside = paper("fedco2_t3", ["Fed-CO2", "FedPer"], DIRICHLET)
    assert own.completed == per.completed == setting("fedco2/t3.yaml", "Fed-CO2", DIRICHLET, "rounds")
    for both in (own, per):
        assert both.after(300) == run("fedco2_t3", both.row, DIRICHLET).value("last"), "the same run"
    leads = [f"{100 * (own.after(count) - per.after(count)):.1f}" for count in MILESTONES]
    assert all(float(lead) > 0 for lead in leads)
    counts = [f"{count:,}" for count in MILESTONES]

    def gained(both: Run, view: str = "") -> str:
        return gap(both.after(MILESTONES[-1], view), both.after(MILESTONES[0], view))

    by = [gap(both.value("headline"), beside[both.row]) for both in (own, per)]
    return {
        "long ahead": f"It is ahead by {gap(own.value('headline'), per.value('headline'))} (printed: "
        f"{gap(beside['Fed-CO2'], beside['FedPer'])}).",
        "long leads": f"After {', '.join(counts[:-1])} and {counts[-1]} rounds its lead is "
        f"{', '.join(leads[:-1])} and {leads[-1]} points.",
        "long gains": f"From round {counts[0]} to round {counts[-1]} FedPer gains {gained(per)}, Fed-CO2 "
        f"{gained(own)}, and its online model alone {gained(own, 'online')}.",
        "long printed": f"Both are above their printed accuracies, Fed-CO2 by {by[0]} and FedPer by {by[1]}.",
    }


def bfloat16() -> dict[str, str]:
    """Two methods in both precisions."""
    found = {}
    for row in ("FedAvg", "FedBN"):
        runs = [run(table, row, DIRICHLET) for table in ("fedco2_t3_bfloat16", "fedco2_t3")]
        half, full = ([own.headline(), own.shown("last"), own.shown("last_k")] for own in runs)
        found[f"bfloat16 {row}"] = (
            f"{row}: by the reported metric it has {half[0]}, in the last round {half[1]} and in the mean of "
            f"the last five evaluations {half[2]}. In float32 these are {full[0]}, {full[1]} and {full[2]}."
        )
    return found


def fdse_t1() -> dict[str, str]:
    images = run("fdse_t1", "FDSE", OFFICE).value("headline") * 251
    assert images == pytest.approx(round(images)), "251 test images"
    partial = run("fdse_t1", "PartialFed", OFFICE)
    nearest = {row: run("fdse_t1", row, OFFICE).value("headline") for row in ("FedHEAL", "FedFA", "FedAvg")}
    elsewhere = ("Local", "PartialFed", "FedFA", "FedHEAL")
    beside = names(ranked(paper("fdse_t1", FDSE_T1, f"{OFFICE} ALL")), *elsewhere)
    same = {c: names(of("fdse_t1", FDSE_T1, OFFICE, c), *elsewhere) for c in ("headline", "last", "last_k")}
    assert {c: order == beside for c, order in same.items()} == {
        "headline": True,
        "last": False,
        "last_k": False,
    }
    for choice in ("headline", "last_k"):
        assert names(of("fdse_t1", FDSE_T1, OFFICE, choice))[-1] == "PartialFed"
    return {
        "rounds": rounds("fdse_t1", "FDSE", OFFICE, "fdse/t1.yaml"),
        "image": f"There are 251 test images, so that one is {100 / 251:.1f} points",
        "printed": in_paper("fdse_t1", FDSE_T1, f"{OFFICE} ALL"),
        "partial": f"In the chosen round they have {partial.domain('dslr')} and {partial.domain('webcam')}, "
        f"the others {partial.domain('amazon')} and {partial.domain('caltech')}.",
        "nearest": f"FedHEAL is {gap(nearest['FedHEAL'], nearest['FedAvg'])} above FedAvg, and FedFA "
        f"{gap(nearest['FedAvg'], nearest['FedFA'])} below it.",
    }


def fdse_values(choice: str) -> dict[str, list[float]]:
    """Return what the printed rows with three seeds have with each of them."""
    rows = [row for row in FDSE_T1_SEEDS if row in FDSE_T1]
    return {row: each_seed("fdse_t1", row, OFFICE, FDSE_SEEDS, choice) for row in rows}


def fdse_t1_seeds() -> dict[str, str]:
    """What three seeds say of Table 1."""
    values = {choice: fdse_values(choice) for choice in ("headline", "last", "last_k")}
    means = {choice: {row: mean(found) for row, found in each.items()} for choice, each in values.items()}
    beside = names(ranked(paper("fdse_t1", list(means["last"]), f"{OFFICE} ALL")))
    assert beside == ["FDSE", "Ditto", "FedBN", "FedAvg", "Local"]
    for choice in ("headline", "last_k"):
        assert names(ranked(means[choice])) == ["FDSE", "FedBN", "Ditto", "FedAvg", "Local"]
    own = values["headline"]
    ahead = {row: sum(a > b for a, b in zip(own["FDSE"], own[row])) for row in beside[1:]}
    assert ahead == {"Ditto": 3, "FedBN": 2, "FedAvg": 3, "Local": 3}
    firsts = {max(values["last_k"], key=lambda row: values["last_k"][row][k]) for k in range(3)}
    assert len(firsts) > 1
    assert min(means["last"], key=lambda row: means["last"][row]) == "FDSE"
    headline, last_k = means["headline"], means["last_k"]
    shown = {row: over_seeds("fdse_t1", row, OFFICE, FDSE_SEEDS) for row in ("FDSE", "Local")}
    return {
        "seeds fedbn": f"of FedBN by {gap(headline['FDSE'], headline['FedBN'])} in the mean",
        "seeds near": f"all five lie within {gap(last_k['FDSE'], last_k['Local'])};",
        "seeds last": "In the last round alone FDSE has "
        f"{over_seeds('fdse_t1', 'FDSE', OFFICE, FDSE_SEEDS, 'last')} and is the last of the five",
        "seeds local": f"Local has {shown['Local']} over three seeds, and "
        f"{printed('fdse_t1', 'Local', f'{OFFICE} ALL')[0]} is printed;",
    }


def fdse_t3_seeds() -> dict[str, str]:
    """What three seeds say of Table 3."""
    parts = {row: ("fdse_t3", row) for row in FDSE_T3} | {"A B C": ("fdse_t1", "FDSE")}
    values = {
        choice: {name: each_seed(*of_run, OFFICE, FDSE_SEEDS, choice) for name, of_run in parts.items()}
        for choice in ("headline", "last_k")
    }
    headline, last_k = ({row: mean(each) for row, each in found.items()} for found in values.values())
    first, *others = sorted(headline.values(), reverse=True)
    assert first == headline["A B C"]
    spread = others[0] - others[-1]
    assert sum(mean_and_std(values["headline"][row])[1] > spread for row in FDSE_T3) == 3
    each = values["last_k"]
    ahead = [each["B"][k] > max(each[row][k] for row in each if row != "B") for k in range(3)]
    assert sorted(ahead) == [False, True, True]
    assert all(each["A B"][k] == min(found[k] for found in each.values()) for k in range(3))
    assert min(each, key=lambda row: mean_and_std(each[row])[1]) == "B"
    assert last_k["A B"] < last_k["A B C"] < last_k["B"]
    return {
        "t3 seeds spread": f"the four others lie within {gap(others[0], others[-1])}, less than",
    }


def fdse_local() -> dict[str, str]:
    """How long Local trains, which was tried because it is so much better than printed."""
    (text,) = printed("fdse_t1", "Local", f"{OFFICE} ALL")
    five, fifty = (run(f"fdse_local_{epochs}", "Local", OFFICE, 2).value("headline") for epochs in (5, 50))
    assert five < float(text.split()[0]) / 100 < fifty
    return {"local printed": f"The printed {text} is between the last two."}


def fedios_office() -> dict[str, str]:
    runs = {row: run(table, row, FEDIOS) for row, table in FEDIOS_ROWS.items()}
    ablation = paper("fedios_t7", ["w/o orthogonal projections", "FediOS"], FEDIOS)
    own = runs["FediOS"]
    before, after = (
        {row: runs[row].value("last_k", point=point) for row in ("FedAvg", "FedRoD")}
        for point in ("after_aggregation", "after_training")
    )
    assert runs["w/o L_re"].summary["views"] == own.summary["views"], "the very numbers of FediOS"
    three = [row for row in FEDIOS_SEEDS if FEDIOS_ROWS[row] == "fedios_t1"]
    each = {row: each_seed("fedios_t1", row, FEDIOS) for row in three}
    seeds = {row: mean(values) for row, values in each.items()}
    rivals = [row for row in three if row != "FediOS"]
    assert min(rivals, key=lambda row: each[row][0]) == max(rivals, key=lambda row: each[row][2]) == "FedRoD"
    there = paper("fedios_t1", three, FEDIOS)
    shown, like = (sorted(three, key=lambda row: -values[row]) for values in (seeds, there))
    assert (*shown[:2], shown[-1]) == (*like[:2], like[-1])
    assert [a > b for a, b in zip(each["Local"], each["Ditto"])] == [True, False, False]
    assert min(each["FediOS"]) > max(max(values) for row, values in each.items() if row != "FediOS")
    without = "w/o orthogonal projections"
    three_without = each_seed("fedios_t7", without, FEDIOS)
    return {
        "rounds": rounds("fedios_t1", "FediOS", FEDIOS, "fedios/t1.yaml"),
        "common": "The common model alone has "
        f"{own.shown('last_k', 'global', 'after_aggregation')} after aggregation, the individual one "
        f"{own.shown('last_k', 'individual')} after training, and both together {own.headline()}.",
        "projections": f"Without orthogonal projections {gap(seeds['FediOS'], mean(three_without))} are lost "
        f"over three seeds (printed: {gap(ablation['FediOS'], ablation[without])})",
        "fedrod": "FedRoD is ahead of FedAvg in the paper and behind it with this seed. After "
        f"aggregation it has {gap(before['FedRoD'], before['FedAvg'])} more than FedAvg, but five "
        f"epochs on a client's own images then bring it {gap(after['FedRoD'], before['FedRoD'])}, and FedAvg "
        f"{gap(after['FedAvg'], before['FedAvg'])}.",
    }


def fedios_64() -> dict[str, str]:
    """What larger images change."""
    without, alone = "w/o orthogonal projections", "w/o personal extractors"
    own, other = (each_seed("fedios_64", row, FEDIOS, (0, 1)) for row in ("FediOS", alone))
    small, smaller = (each_seed(FEDIOS_ROWS[row], row, FEDIOS, (0, 1)) for row in ("FediOS", alone))
    beside = paper("fedios_t7", [alone, without, "FediOS"], FEDIOS)
    assert all(a > b for a, b in zip(own, other))
    lost = [f"{100 * (a - b):.1f}" for a, b in zip(own, other)]
    projected = run("fedios_64", without, FEDIOS).value("headline")
    return {
        "64": f"Without it {lost[0]} and {lost[1]} points are lost (printed: "
        f"{gap(beside['FediOS'], beside[alone])}); with 32 pixels the accuracy was "
        f"{gap(smaller[0], small[0])} higher with the first seed, and {gap(small[1], smaller[1])} lower "
        "with the second.",
        "64 projections": f"Without orthogonal projections {gap(own[0], projected)} are lost with the first "
        "seed (printed: "
        f"{gap(beside['FediOS'], beside[without])}).",
    }


def fedios_cifar100() -> dict[str, str]:
    lead = [
        run("fedios_t1", "FediOS", CIFAR100).value("headline"),
        run("fedios_t1", "FedAvg", CIFAR100).value("headline"),
    ]
    return {
        "rounds": rounds("fedios_t1", "FediOS", CIFAR100, "fedios/t1.yaml"),
        "lead": f"FediOS leads by {gap(*lead)}.",
    }


def dcpfl() -> dict[str, str]:
    rows = DCPFL_ROWS
    runs = {row: run("dcpfl_t1", row, DCPFL) for row in rows}

    def right(row: str, choice: str) -> float:
        return runs[row].value(choice, average="pooled") * 595

    last = {row: right(row, "last") for row in rows}
    assert list(last.values()) == pytest.approx([512, 502, 499, 510, 512, 512, 518]), "595 test images"
    ahead = {choice: right("DC-PFL", choice) - right("Local-T", choice) for choice in ("best_val", "last_k")}
    return {
        "rounds": rounds("dcpfl_t1", "DC-PFL", DCPFL, "dcpfl/t1.yaml"),
        "image": f"There are 595 test images; one is {100 / 595:.2f} points.",
        "equal": f"Local-T, DC-PFL and DC-PFL without feature-level calibration (w/o AL) all have "
        f"{last['DC-PFL']:.0f} of them right",
        "gc": f"DC-PFL without calibration of the classifier (w/o GC) has {last['DC-PFL w/o GC']:.0f}",
        "ahead": f"DC-PFL is ahead of Local-T by {ahead['best_val']:.0f} images in the round that validation "
        f"chooses, and by {ahead['last_k']:.0f} in the mean of the last five evaluations.",
        "loss": f"the training loss of Local-T falls to {runs['Local-T'].summary['loss']:.4f}",
        "fedavg": f"its average, which has {runs['FedAvg'].shown('last', point='after_aggregation')} % after "
        "aggregation,",
        "fml": f"its common net has {runs['FML'].shown('last', 'global', 'after_aggregation')} % after "
        "aggregation",
        "fedgh": f"the strongest rival in the paper, has {last['FedGH']:.0f} images right",
        "classifier": "with the new common classifier the models have "
        f"{runs['FedGH'].shown('last', point='after_aggregation')} % after aggregation, and "
        f"{runs['FedGH'].shown('last')} % after five epochs of training on their own.",
    }


def dcpfl_fifth() -> dict[str, str]:
    """What more data change."""
    each = {row: each_seed("dcpfl_fifth", row, DCPFL) for row in DCPFL_ROWS}

    def gaps(row: str) -> list[float]:
        return [100 * (a - b) for a, b in zip(each["DC-PFL"], each[row], strict=True)]

    def ahead(row: str) -> str:
        first, second, third = (f"{gap:.1f}" for gap in gaps(row))
        return f"{first}, {second} and {third} points"

    always = [row for row in DCPFL_ROWS if row != "DC-PFL" and min(gaps(row)) > 0]
    assert always == ["Local-T", "FedAvg", "FedGH", "DC-PFL w/o AL"], "with every seed"
    assert [gap > 0 for gap in gaps("FML")] == [True, False, True]
    over = {row: mean(values) for row, values in each.items()}
    assert max(over, key=lambda row: over[row]) == "DC-PFL"
    middle = [over[row] for row in ("FedAvg", "Local-T", "FML", "FedGH")]
    return {
        "local": f"It is ahead of Local-T by {ahead('Local-T')}, of FedAvg by {ahead('FedAvg')}, of FedGH by "
        f"{ahead('FedGH')}, and of DC-PFL without feature-level calibration by {ahead('DC-PFL w/o AL')}.",
        "gc": f"Calibration of the classifier brings {ahead('DC-PFL w/o GC')}.",
        "middle": f"FedAvg, Local-T, FML and FedGH lie within {100 * (max(middle) - min(middle)):.1f} points",
    }


def niid() -> dict[str, str]:
    best = {row: niid_best(row) for row in NIID_ROWS}
    last = {row: run("outside_niid_bench", row, NIID).value("headline") for row in NIID_ROWS}
    beside = paper("outside_niid_bench", NIID_ROWS, NIID)
    assert all(abs(best[row] - beside[row]) < 0.01 for row in NIID_ROWS), "within a point"
    return {
        "best": f"In its best round FedAvg is {gap(best['FedAvg'], beside['FedAvg'])} above the printed "
        f"accuracy, and SCAFFOLD is {gap(beside['SCAFFOLD'], best['SCAFFOLD'])} below it.",
        "ahead": f"SCAFFOLD is ahead of FedAvg by {gap(best['SCAFFOLD'], best['FedAvg'])} in their best "
        f"rounds (printed: {gap(beside['SCAFFOLD'], beside['FedAvg'])}), and by "
        f"{gap(last['SCAFFOLD'], last['FedAvg'])} in the last one.",
    }


def feddbe_setting() -> dict[str, str]:
    runs = feddbe_runs()
    rounds = {row: own.completed for row, (own, _) in runs.items()}
    assert rounds == dict.fromkeys(PFLLIB_ROWS, 200) | {"FedBABU": 150, "FedDBE": 150}
    best = {row: own.value("headline", view) for row, (own, view) in runs.items() if rounds[row] == 200}
    known = [row for row in PFLLIB_ROWS if printed("published_feddbe", row, PFLLIB) != ["n/a"]]
    beside = paper("published_feddbe", known, PFLLIB)
    assert sorted(known, key=lambda row: best[row]) == sorted(known, key=lambda row: beside[row])
    off = {
        row: max(abs(ours - theirs) for k, (ours, theirs) in pfllib_pairs(row).items() if k >= 20)
        for row in PFLLIB_CURVES
    }
    assert runs["FedBABU"][0].scored_rounds() == [50, 100, 150]
    after = {
        k: {row: own.after(k, view) for row, (own, view) in runs.items() if k >= 50 or row != "FedBABU"}
        for k in (5, 50, 150)
    }
    return {
        "order": f"By the best round by test: {ranked(best)}. FedALA's paper prints {ranked(beside)}. "
        "On these three rows the order is the same.",
        "near": f"From round 20 on, the curves of FedAvg are at most {gap(off['FedAvg'], 0)} apart, and "
        f"those of FedPer at most {gap(off['FedPer'], 0)}.",
        "slow": f"FedDBE begins slowly: after five rounds it has {cell(after[5]['FedDBE'])}, where FedPer "
        f"has {cell(after[5]['FedPer'])}.",
        "later": f"After 150 rounds: {ranked(after[150])}.",
        "common": f"FedDBE's model without memories has {cell(runs['FedDBE'][0].after(150, 'global'))} then.",
    }


def repeated() -> dict[str, str]:
    """What Fed-CO2 prints twice."""
    _, *rows = printed_twice()
    by = {row: float(text) for row, *_, text in rows}
    same = [abs(by[row]) for row in ("SingleSet", "FedBN", "Fed-CO2")]
    less = {row: -each for row, each in by.items() if abs(each) > max(same)}
    assert max(same) < 0.32
    assert list(less) == ["FedAvg", "FedProx", "MOON", "FedRoD"]
    behind = [
        float(fedavg.split()[0]) - float(prox.split()[0])
        for fedavg, prox in zip(
            *([row[k] for k in (1, 2)] for row in rows if row[0] in ("FedAvg", "FedProx"))
        )
    ]
    return {
        "level": f"where the corrected p is below {LEVEL}.",
        "same": f"SingleSet, FedBN and Fed-CO2 agree within {max(same):.1f} points.",
        "less": f"have between {min(less.values()):.1f} and {max(less.values()):.1f} points less in Table "
        "13.",
        "behind": f"By Table 3 FedProx is {behind[0]:.1f} points behind FedAvg, and by Table 13 it is "
        f"{behind[1]:.1f} points behind.",
    }


def statements() -> dict[str, dict[str, str]]:
    """Return the sentences with numbers, by their pages."""
    return {
        "results": repeated(),
        "embedded_methods": {},
        "fedco2_t3": {
            "rounds": rounds("fedco2_t3", "Fed-CO2", PATHOLOGICAL, "fedco2/t3.yaml"),
            **{f"pathological {name}": text for name, text in t3(PATHOLOGICAL).items()},
            **{f"dirichlet {name}": text for name, text in t3(DIRICHLET).items()},
            **t3_seeds(),
            **t3_dirichlet(),
            **t3_long(),
            **bfloat16(),
        },
        "fdse_t1": fdse_t1() | fdse_t1_seeds() | fdse_t3_seeds() | fdse_local(),
        "fedios_t1": fedios_office()
        | {f"larger {name}": text for name, text in fedios_64().items()}
        | {f"part {name}": text for name, text in fedios_cifar100().items()},
        "dcpfl_t1": dcpfl() | {f"fifth {name}": text for name, text in dcpfl_fifth().items()},
        "outside_niid_bench": niid(),
        "published_feddbe": feddbe_setting(),
    }


STATEMENTS = statements()


def joined(text: str) -> str:
    return " ".join(text.split())


def test_all_that_is_written_is_what_the_summaries_and_the_papers_say():
    """Tables, what they count, and † behind methods that nobody has compared with their papers."""
    whole, shown = made(), {}
    for path in (*PAGES, TABLES):
        text = path.read_text()
        again = f"{path.name}: python -m docs.results_page writes it anew"
        for name, found in written(text).items():
            assert found == whole[name], again
            shown[name] = found
        assert text == with_marks(text), again
        assert ("†" in re.sub("† Not verified.*", "", text)) == ("footnote" in written(text)), path.name
        if path != TABLES and path != PAGE:
            lines = sum(line.startswith("|") for line in text.splitlines())
            assert lines == sum(each.count("\n") + 1 for each in written(text).values() if each[0] == "|")
    assert shown.keys() == whole.keys()


def test_marks_stand_behind_names_of_unverified_methods_alone():
    """Not in commands; and a mark goes when a method's page says no more that it is not verified."""
    text = "```\nrayfl run --method {0}\n```\n{0}{1} and FedAvg"
    for row in embedded_runs():
        page = re.sub(r"\W", "", row).lower()
        assert with_marks(text.format(row, "")) == text.format(row, "†" if page in UNVERIFIED else "")
    assert with_marks(text.format("FedProx", "†")) == text.format("FedProx", "")


def test_the_first_number_is_of_the_declared_protocol():
    for name, (head, *rows) in tables().items():
        if name not in (
            "claims",
            "printed twice",
            "pfllib curves",
            "published_feddbe by rounds",
            "embedded_methods",
        ):
            assert head[1].startswith("reported"), name
            assert all(re.match(r"\d", row[1]) for row in rows)
    for path in FOLDER.glob("*/*.json"):
        headline = json.loads(path.read_text())["headline"]
        row, column, seed = path.stem.split("--")
        own = Run(path.parent.name, row, column, int(seed.removeprefix("seed-")))
        assert own.value("headline") == headline["accuracy"]
        assert own.chosen("headline")["rounds"] == headline["rounds"]


def test_deviations_are_over_seeds():
    """But for those that papers print; one run has none."""
    over = {"claims", "fdse_local", "dcpfl fifth", "embedded_methods", "printed twice"}
    for name, (head, *rows) in tables().items():
        own = [k for k, heading in enumerate(head) if not heading.startswith("printed")]
        found = {head[k] for row in rows for k in own if "±" in row[k]}
        assert not found or name in over or "seeds" in name, (name, found)


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, found in STATEMENTS.items() for name in found]
)
def test_the_sentences_say_what_the_summaries_say(page, name):
    assert with_marks(STATEMENTS[page][name]) in joined(TEXTS[page])


WORDS = "one|two|three|four|five|six|seven|eight|nine|ten|a|some"
NUMBER = rf"(?<![\w.])\d*\.\d+|\d+ (?:points?|%|per cent)|\b(?:{WORDS}) points?"
"""What a sentence may not have without a test: decimals, and numbers of points."""


def prose(page: str) -> str:
    """Return the sentences of a page that are not written by the script."""
    text = re.sub(r"```.*?```", "", MARKER.sub("", TEXTS[page]), flags=re.S)
    return joined("\n".join(line for line in text.splitlines() if not line.startswith(("|", "!["))))


@pytest.mark.parametrize("page", TEXTS)
def test_there_are_no_other_numbers(page):
    text = prose(page)
    for statement in STATEMENTS[page].values():
        text = text.replace(with_marks(statement), "")
    text = re.sub(r"`[^`]*`|alpha \d\.\d|\.5 and \.5", "", text)  # settings
    assert re.findall(NUMBER, text) == []


# ---- what can be told


def test_what_holds():
    """The claims table, and the overview of the pages, which repeats it in words."""
    found = all_told()
    holds = [(each.claims.page, each.row) for each in found if each.verdict == "holds"]
    rows = ("FedBN", "SingleSet", "FedAvg")
    assert sorted(holds) == sorted([*[("fedco2_t3", row) for row in rows] * 2, ("fedios_t1", "MOON")])
    assert all(each.printed > 0 for each in found), "the paper has it ahead"
    (nearly,) = (each.p for each in found if each.row == "w/o orthogonal projections")
    assert LEVEL < nearly < 0.06, "just above the level"
    for each in found:
        assert each.verdict == "cannot be told" or (each.p is not None and each.p < LEVEL)
        assert (each.p is None) == (len(each.seeds) < 3)


def test_a_claim_that_is_refuted_would_be_said_to_be():
    """Its verdict depends on the sign and on p alone."""
    first = all_told()[0]
    for differences, p, verdict in (
        ([-2.0, -2.1, -1.9], 0.01, "does not hold"),
        ([2.0, 2.1, 1.9], 0.01, "holds"),
        ([2.0, 2.1, 1.9], LEVEL, "cannot be told"),
        ([-2.0], None, "cannot be told"),
    ):
        assert replace(first, differences=differences, p=p).verdict == verdict


@pytest.mark.parametrize("page", TEXTS)
def test_bold_text_claims_nothing_of_a_method(page):
    rows = {row for table in tables().values() for row, *_ in table[1:]} | set(METHODS)
    for bold in re.findall(r"\*\*(.+?)\*\*", TEXTS[page], flags=re.S):
        assert not rows & set(re.findall(r"[\w-]+", bold)), bold


def test_what_is_said_of_orders_without_numbers():
    """Sentences such as "FedRoD is the last of all with seed 0"."""
    shown = names(of("fedco2_t3", FEDCO2_T3[DIRICHLET], DIRICHLET, "last_k"))
    beside = names(ranked(paper("fedco2_t3", shown, DIRICHLET)))
    for first, second in (("FedPer", "FedBN"), ("FedRoD", "FedBN"), ("FedProx", "FedAvg")):
        assert shown.index(first) < shown.index(second)
        assert beside.index(first) > beside.index(second)
    rivals = [row for row in DCPFL_ROWS if not row.startswith("DC-PFL")]
    assert max(rivals, key=paper("dcpfl_t1", rivals, DCPFL).get) == "FedGH"
    for last in (
        min(paper("dcpfl_t1", DCPFL_ROWS, DCPFL).items(), key=lambda pair: pair[1])[0],
        names(of("dcpfl_t1", DCPFL_ROWS, DCPFL))[-1],
    ):
        assert last == "FML"
    slow, first = (run(FEDIOS_ROWS[row], row, FEDIOS).value("headline") for row in ("FedGH", "FediOS"))
    assert slow > first


def test_the_page_is_short():
    assert len(TEXTS["results"].split()) <= 3000


# ---- which code made them


def test_every_summary_says_which_code_made_it():
    """By a digest of the sources; those of before, which become fewer, by the commit that published them."""
    known = published()
    new = {name for name, content in known.items() if "rayfl" in content}
    assert COMMITS.keys() == known.keys() - new, "a new run has its code under rayfl, as summary.json has it"
    assert all(re.fullmatch(r"[0-9a-f]{7,}", commit) for commit in COMMITS.values())
    assert len(COMMITS) <= 187
    assert "`ab12`" in made_by("new", {"rayfl": {"version": "0.1.0", "sources": "ab12"}})
    with pytest.raises(KeyError):
        made_by("new", {})


def test_every_summary_is_on_a_page():
    tables()
    statements()
    assert {own.path for own in USED} == set(FOLDER.glob("*/*.json"))
    assert {path.parent.name for path in FOLDER.glob("*/*.json")} == {
        f for own in DETAILS.values() for f in own
    }


def test_the_summaries_are_those_of_known_tables():
    known = {f"{name}_{table}" for name, found in known_tables().items() for table in found}
    ours = {
        "fedco2_t3_bfloat16",
        LONG,
        "fedios_bases",
        "fedios_64",
        "dcpfl_fifth",
        *(table for table, _ in FDSE_LOCAL.values()),
    }
    assert {folder.name for folder in FOLDER.iterdir() if folder.is_dir()} <= known | ours


def test_all_methods_have_the_options_that_the_page_says():
    """The table file gives these rows options other than their methods' defaults, and no others."""
    table = Table.load(EXAMPLES / "embedded" / "methods.yaml")

    def own(row: str, column: str) -> str:
        settings = table.settings(row, column, {})
        method = METHODS[settings["method"]]()
        given = {key.partition(".")[2]: settings[key] for key in settings if key.startswith("method.")}
        odd = [f"`{name}={value}`" for name, value in given.items() if getattr(method, name) != value]
        return f"{row} ({', '.join(odd)})" if odd else ""

    in_both = [own(row, "domains") for row in table.rows if own(row, "domains")]
    in_labels = [own(row, "labels") for row in table.rows if own(row, "labels")]
    (other,) = (each for each in in_labels if each not in in_both)
    assert [each for each in in_labels if each != other] == in_both
    said = f"default options, except {', '.join(in_both)} and, in the column labels, {other}."
    assert said in joined(TEXTS["embedded_methods"])


def test_all_methods_have_three_seeds_on_embedded_digits():
    assert all(set(seeds) == {"0", "1", "2"} for own in embedded_runs().values() for seeds in own.values())
    assert list(embedded_runs()) == list(Table.load(EXAMPLES / "embedded" / "methods.yaml").rows)


def test_what_is_said_of_all_methods():
    def order(column):
        values = {row[0]: mean(embedded_values(row[0], column, "personal")) for row in embedded()[1:]}
        return sorted(values, key=lambda name: -values[name]), values

    domains, values = order("domains")
    level = ["FedProto", "DC-PFL", "FD", "FedGH", "LG-FedAvg", "FediOS", "Fed-CO2", "APFL"]
    level += ["FedFomo", "FedBABU"]
    assert set(domains[: len(level) + 1]) == {*level, "Local"}
    assert max(values[name] for name in level) - values["Local"] < 0.015
    one_for_all = ["FedAvg", "FedProx", "MOON", "SCAFFOLD", "FedDyn", "FedAvgM", "FedHEAL", "FedFA", "FedSR"]
    assert max(values[name] for name in one_for_all) < values["Local"] - 0.03
    before = mean(embedded_values("FedAvg-FT", "domains", "global"))
    assert (values["FedAvg-FT"] - before) / (values["Local"] - before) > 0.5
    labels, values = order("labels")
    assert abs(values["FedAvg-FT"] - mean(embedded_values("FedAvg-FT", "labels", "global"))) < 0.01
    assert set(labels[:2]) == {"FedRep", "FedRoD"}
    assert set(labels[2:5]) == {"FedDBE", "FedPAC", "FedBABU"}
    assert set(labels[5:10]) == {"FedALA", "FedDyn", "COPA", "Fed-CO2", "FedPer"}
    assert domains[:2] == ["Fed-CO2", "FedBABU"]
    assert labels[-1] == "FedProto"
    assert values["Local"] < values["FedPer"] - 0.05
    globals_ = {name: mean(embedded_values(name, "domains", "global")) for name in one_for_all}
    assert mean(embedded_values("PartialFed", "domains", "global")) < min(globals_.values()) - 0.3


def test_what_was_changed_in_fedper():
    page = (FOLDER.parent / "methods" / "fedper.md").read_text()
    for one in json.loads((FOLDER / "fedper_changes.json").read_text()):
        percent = {int(rounds): f"{100 * accuracy:.1f}" for rounds, accuracy in one["accuracy"].items()}
        assert one["rayfl"]["sources"]
        if one["column"] == "CIFAR10 Dirichlet":
            cells = " | ".join(percent.get(rounds, "") for rounds in range(20, 101, 20))
            assert f"| {one['changed']} | {cells} |" in page
        else:
            assert re.search(rf"\b{percent[max(percent)]} after {max(percent)} rounds", page)


def test_the_page_of_protocols_follows_from_its_evaluations() -> None:
    """Each row: the last round, the best by validation and by test (the earliest of equals), and G."""
    page = (FOLDER.parent / "protocols.md").read_text()
    with (FOLDER / "protocols.csv").open() as file:
        rows = list(csv.DictReader(file))
    for place, own in groupby(rows, lambda row: (row["test_from"], row["view"])):
        evaluations = list(own)
        assert len(evaluations) == 12
        chosen = [evaluations[-1]]
        chosen += [
            max(evaluations, key=lambda row: float(row[by])) for by in ("validation_mean", "test_mean")
        ]
        cells = [f"{row['test_mean']} ({row['test_pooled']})" for row in chosen]
        division, view = place[0], place[1].replace("finetuned", "fine-tuned")
        assert f"| {division} | {view} | {' | '.join(cells)} | {chosen[0]['common_mean'] or '-'} |" in page
