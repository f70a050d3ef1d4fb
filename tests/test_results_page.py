"""docs/results.md says what the summaries in docs/results/ say, in its tables and its sentences."""

import json
import re
from collections.abc import Mapping

import pytest

from docs.results_page import (
    CIFAR100,
    DCPFL,
    DCPFL_ROWS,
    DIRICHLET,
    EXAMPLES,
    FDSE_LOCAL,
    FDSE_SEEDS,
    FDSE_T1,
    FDSE_T1_SEEDS,
    FDSE_T2,
    FDSE_T3,
    FEDCO2_T3,
    FEDIOS,
    FEDIOS_ROWS,
    FEDIOS_SEEDS,
    FOLDER,
    LONG,
    MILESTONES,
    NIID,
    NIID_ROWS,
    OFFICE,
    PACS,
    PAGE,
    PATHOLOGICAL,
    T3_SEEDS,
    USED,
    Run,
    cell,
    each_seed,
    embedded,
    embedded_seeds,
    embedded_values,
    fdse_t2_values,
    markdown,
    mean,
    niid_best,
    over_seeds,
    printed,
    run,
    setting,
    shown_tables,
    tables,
)
from rayfl.config.table_file import Table
from rayfl.methods import METHODS
from rayfl.papers.printed import known_tables
from rayfl.report.text import mean_and_std

TEXT = PAGE.read_text()


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
    rows = FEDCO2_T3[column]
    own, per = run("fedco2_t3", "Fed-CO2", column), run("fedco2_t3", "FedPer", column)
    beside = paper("fedco2_t3", ["FedPer"], column)["FedPer"]
    better = {c: max(own.value(c, view) for view in ("online", "offline")) for c in ("headline", "last_k")}
    return {
        "headline": f"The order by the headline is {of('fedco2_t3', rows, column)}.",
        "last_k": "By the mean of the last five evaluations it is "
        f"{of('fedco2_t3', rows, column, 'last_k')}.",
        "printed": in_paper("fedco2_t3", rows, column),
        "both": f"Both models together have {gap(own.value('headline'), better['headline'])} more than the "
        f"better one alone by the headline, and {gap(own.value('last_k'), better['last_k'])} by the last "
        "five evaluations.",
        "fedper": f"FedPer is {gap(per.value('headline'), beside)} above its printed accuracy.",
    }


def t3_values(column: str, choice: str) -> dict[str, list[float]]:
    """Return what the rows with three seeds have with each of them."""
    return {row: each_seed("fedco2_t3", row, column, choice=choice) for row in T3_SEEDS}


def t3_seeds(column: str) -> dict[str, str]:
    """What three seeds say."""
    orders = {
        choice: ranked({row: mean(values) for row, values in t3_values(column, choice).items()})
        for choice in ("headline", "last_k")
    }
    last = t3_values(column, "last_k")
    ahead = [a - b for a, b in zip(last["Fed-CO2"], last["FedPer"])]
    assert min(last["Fed-CO2"]) > max(x for row in ("SingleSet", "FedAvg", "FedBN") for x in last[row])
    if column == DIRICHLET:
        assert 0 < ahead[0] < 0.001
        said = f"ahead by {100 * ahead[1]:.1f} and {gap(ahead[2], 0)} with the others"
    else:
        headline = t3_values(column, "headline")
        assert all(a < b for a, b in zip(headline["Fed-CO2"], headline["FedPer"]))
        assert mean(last["FedBN"]) < mean(last["SingleSet"])
        assert last["FedBN"][0] > last["SingleSet"][0]
        said = f"Fed-CO2 is ahead of FedPer by {gap(mean(ahead), 0)} in the mean of the last five evaluations"
    return {
        "three headline": f"Over three seeds the order by the headline is {orders['headline']}.",
        "three last_k": f"By the last five evaluations it is {orders['last_k']}",
        "three ahead": said,
    }


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
        "later": f"In the last five evaluations FedBN has {later('FedBN')} more than in the headline, FedAvg "
        f"{later('FedAvg')} and FedProx {later('FedProx')}, while FedRoD has {later('FedRoD')} less and "
        f"FedPer {later('FedPer')} less.",
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
    """Two methods in both precisions; every difference of means is within the larger deviation."""
    found = {}
    for row in ("FedAvg", "FedBN"):
        runs = [run(table, row, DIRICHLET) for table in ("fedco2_t3_bfloat16", "fedco2_t3")]
        for choice in ("headline", "last_k"):
            values = [own.value(choice) for own in runs]
            deviations = [own.chosen(choice)["over_rounds"]["pooled"] for own in runs]
            assert abs(values[0] - values[1]) <= max(deviations)
        half, full = ([own.headline(), own.shown("last"), own.shown("last_k")] for own in runs)
        found[f"bfloat16 {row}"] = (
            f"{row}: its headline is {half[0]}, its last round {half[1]} and the mean of its last five "
            f"evaluations {half[2]}. In float32 these are {full[0]}, {full[1]} and {full[2]}."
        )
    return found


def t7() -> dict[str, str]:
    co2, bn = (run("fedco2_t7", row, "Digits-Five") for row in ("Fed-CO2", "FedBN"))
    domain = [r.chosen("headline")["domains"]["MNIST-M"]["mean"] for r in (co2, bn)]
    beside = paper("fedco2_t7", ["Fed-CO2", "FedBN"], "MNIST-M")
    return {
        "rounds": f"FedBN has had {bn.completed} rounds, Fed-CO2 {co2.completed}",
        "gain": f"On MNIST-M Fed-CO2 has {gap(*domain)} more than FedBN (printed: "
        f"{gap(beside['Fed-CO2'], beside['FedBN'])}).",
        "offline": f"Its offline model alone has {co2.shown('headline', 'offline')} in the mean of the "
        f"domains, both models together {co2.headline()}.",
    }


def t1() -> dict[str, str]:
    rows = ["SingleSet", "FedAvg", "FedBN", "Fed-CO2"]
    runs = {row: run("fedco2_t1", row, OFFICE) for row in rows}
    beside = paper("fedco2_t1", rows, "Avg")

    def ahead(first: str, second: str) -> str:
        by = {
            choice: gap(*(runs[r].value(choice) for r in (first, second)))
            for choice in ("headline", "last_k")
        }
        return (
            f"{first} has {by['headline']} more than {second} by the headline and {by['last_k']} by the last "
            f"five evaluations (printed: {gap(beside[first], beside[second])})"
        )

    def behind(domain: str, name: str) -> str:
        here = [runs[r].chosen("headline")["domains"][domain]["mean"] for r in ("SingleSet", "FedAvg")]
        there = paper("fedco2_t1", rows, name)
        return f"{gap(*here)} in {domain} (printed: {gap(there['SingleSet'], there['FedAvg'])})"

    co2 = runs["Fed-CO2"]
    return {
        "headline": f"The order by the headline is {of('fedco2_t1', rows, OFFICE)}.",
        "last_k": "By the mean of the last five evaluations it is "
        f"{of('fedco2_t1', rows, OFFICE, 'last_k')}.",
        "first": ahead("Fed-CO2", "FedBN"),
        "second": ahead("FedBN", "SingleSet"),
        "fedavg": f"FedAvg is behind SingleSet by {behind('dslr', 'DSLR')} and {behind('webcam', 'WebCam')}",
        "views": f"Of Fed-CO2's models the online one has {co2.shown('last_k', 'online')} in the last five "
        f"evaluations, the offline one {co2.shown('last_k', 'offline')}, and both together "
        f"{co2.shown('last_k')}.",
    }


def transfers() -> dict[str, str]:
    rows = ["no transfer", "no intra-client transfer", "no inter-client transfer"]
    done = {run("fedco2_transfers", row, OFFICE).completed for row in rows}
    assert len(done) == 1
    return {
        "rounds": f"Here they have had {done.pop()} rounds.",
        "headline": f"The order by the headline is {of('fedco2_transfers', rows, OFFICE)}.",
        "last_k": "By the mean of the last five evaluations it is "
        f"{of('fedco2_transfers', rows, OFFICE, 'last_k')}.",
    }


FDSE = FDSE_T1[OFFICE]


def fdse_t1() -> dict[str, str]:
    code = run("fdse_t1", "FDSE (code)", OFFICE)
    parts = {row: run("fdse_t3", row, OFFICE) for row in FDSE_T3}
    parts["A B C"] = run("fdse_t1", "FDSE", OFFICE)
    images = run("fdse_t1", "FDSE", OFFICE).value("headline") * 251
    assert images == pytest.approx(round(images)), "251 test images"
    partial = run("fdse_t1", "PartialFed", OFFICE)
    nearest = {row: run("fdse_t1", row, OFFICE).value("headline") for row in ("FedHEAL", "FedFA", "FedAvg")}
    ablation = paper("fdse_t3", list(parts), f"{OFFICE} ALL")
    assert list(ablation.values()) == sorted(ablation.values())
    return {
        "rounds": rounds("fdse_t1", "FDSE", OFFICE, "fdse/t1.yaml"),
        "image": f"251 test images, so that one is {100 / 251:.1f} points",
        "headline": f"The order by the headline is {of('fdse_t1', FDSE, OFFICE)}.",
        "last_k": f"By the mean of the last five evaluations it is {of('fdse_t1', FDSE, OFFICE, 'last_k')}.",
        "last": f"By the last round it is {of('fdse_t1', FDSE, OFFICE, 'last')}.",
        "printed": in_paper("fdse_t1", FDSE, f"{OFFICE} ALL"),
        "code": f"FDSE (code) has {code.headline()} in its chosen round, {code.shown('last')} in the last "
        f"one and {code.shown('last_k')} in the last five evaluations.",
        "partial": f"In the chosen round they have {partial.domain('dslr')} and {partial.domain('webcam')}, "
        f"the others {partial.domain('amazon')} and {partial.domain('caltech')}.",
        "nearest": f"FedHEAL is {gap(nearest['FedHEAL'], nearest['FedAvg'])} above FedAvg, and FedFA "
        f"{gap(nearest['FedAvg'], nearest['FedFA'])} below it.",
        "t3": f"The order by the headline is {ranked({k: r.value('headline') for k, r in parts.items()})}.",
        "t3 last_k": "By the mean of the last five evaluations it is "
        f"{ranked({k: r.value('last_k') for k, r in parts.items()})}.",
        "t3 printed": in_paper("fdse_t3", list(parts), f"{OFFICE} ALL"),
    }


def fdse_values(choice: str) -> dict[str, list[float]]:
    """Return what the printed rows with three seeds have with each of them."""
    rows = [row for row in FDSE_T1_SEEDS if row in FDSE]
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
        "seeds headline": f"By the headline the order is {ranked(headline)}.",
        "seeds last_k": f"By the last five evaluations it is {ranked(last_k)}.",
        "seeds fedbn": f"of FedBN by {gap(headline['FDSE'], headline['FedBN'])} in the mean",
        "seeds near": f"all five lie within {gap(last_k['FDSE'], last_k['Local'])};",
        "seeds last": "In the last round alone FDSE has "
        f"{over_seeds('fdse_t1', 'FDSE', OFFICE, FDSE_SEEDS, 'last')} and is the last of the five",
        "seeds code": "FDSE (code) has "
        f"{over_seeds('fdse_t1', 'FDSE (code)', OFFICE, FDSE_SEEDS)} by the headline and "
        f"{over_seeds('fdse_t1', 'FDSE (code)', OFFICE, FDSE_SEEDS, 'last_k')} in the last five evaluations.",
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
        "t3 seeds headline": f"Over three seeds the order by the headline is {ranked(headline)}.",
        "t3 seeds last_k": f"By the last five evaluations it is {ranked(last_k)}.",
        "t3 seeds spread": f"the four others lie within {gap(others[0], others[-1])}, less than",
        "t3 seeds b": f"({over_seeds('fdse_t3', 'B', OFFICE, FDSE_SEEDS, 'last_k')})",
    }


def fdse_local() -> dict[str, str]:
    """How long Local trains, which was tried because it is so much better than printed."""
    after = {
        name: over_seeds(table, "Local", OFFICE, FDSE_SEEDS) for name, (table, _) in [*FDSE_LOCAL.items()][:2]
    }
    longest = run("fdse_local_50", "Local", OFFICE, 2).headline()
    return {
        "local": f"After one epoch Local has {after['1 epoch']}, after five {after['5 epochs']}, and after "
        f"50 it has {longest}.",
        "local printed": f"The printed {printed('fdse_t1', 'Local', f'{OFFICE} ALL')[0]} is",
    }


def fdse_pacs() -> dict[str, str]:
    values = [run("fdse_t1", row, PACS).value("headline") for row in (*FDSE_T1[PACS], "FDSE (code)")]
    return {
        "rounds": f"{run('fdse_t1', 'FDSE', PACS).completed} rounds of one epoch "
        f"(the paper: {setting('fdse/t1.yaml', 'FDSE', PACS, 'rounds')} rounds of "
        f"{setting('fdse/t1.yaml', 'FDSE', PACS, 'training.epochs')} epochs)",
        "range": f"The methods lie within {gap(max(values), min(values))}",
    }


def fdse_t2() -> dict[str, str]:
    rows = ("FedAvg", "FedBN", "FDSE")
    by = {
        choice: {row: mean(fdse_t2_values(row, choice)) for row in FDSE_T2}
        for choice in ("best_val", "last", "last_k")
    }
    for row, (method, point) in FDSE_T2.items():
        for domain in "CADW":
            own = run("fdse_t2", method, f"Office {domain}")
            assert own.chosen("best_val", point=point)["rounds"] == own.summary["headline"]["rounds"], row
    for choice in by:  # the sentence on the control
        assert fdse_t2_values("FDSE", choice) == fdse_t2_values("FDSE, step 0", choice)
    beside = paper("fdse_t2", ["FedAvg", "FedBN", "FDSE, not adapted", "FDSE"], "Office AVG")

    def order(choice: str) -> str:
        return ranked({row: by[choice][row] for row in rows})

    def gain(row: str, choice: str) -> str:
        return gap(by[choice][row], by[choice][f"{row}, not adapted"])

    lead = [gap(by[choice]["FDSE"], by[choice]["FedAvg"]) for choice in ("best_val", "last_k")]
    return {
        "rounds": rounds("fdse_t2", "FDSE", "Office C", "fdse/t2.yaml"),
        "images": "dslr has 15 test images and webcam 29, so that one is "
        f"{100 / 15:.1f} or {100 / 29:.1f} points",
        "headline": f"The order by the headline is {order('best_val')}.",
        "last_k": f"By the mean of the last five evaluations it is {order('last_k')}.",
        "printed": in_paper("fdse_t2", list(rows), "Office AVG"),
        "lead": f"FDSE has {lead[0]} more than FedAvg by the headline and {lead[1]} by the last five "
        f"evaluations (printed: {gap(beside['FDSE'], beside['FedAvg'])}).",
        "gain": f"By adapting FDSE gains {gain('FDSE', 'best_val')} in the headline and "
        f"{gain('FDSE', 'last_k')} in the last five evaluations "
        f"(printed: {gap(beside['FDSE'], beside['FDSE, not adapted'])}).",
        "fedbn": f"FedBN gains {gain('FedBN', 'best_val')} in the headline and {gain('FedBN', 'last_k')} in "
        "the last five evaluations.",
    }


FEDIOS_T1 = ["Local", "FedAvg", "MOON", "Ditto", "FedRoD", "FediOS"]


def fedios_office() -> dict[str, str]:
    rows = FEDIOS_T1
    runs = {row: run(table, row, FEDIOS) for row, table in FEDIOS_ROWS.items()}
    value = {row: own.value("headline") for row, own in runs.items()}
    ablation = paper("fedios_t7", ["w/o personal extractors", "w/o orthogonal projections", "FediOS"], FEDIOS)
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
    without, alone = "w/o orthogonal projections", "w/o personal extractors"
    beside = paper("fedios_t1", rows, FEDIOS)
    three_without = each_seed("fedios_t7", without, FEDIOS)
    return {
        "rounds": rounds("fedios_t1", "FediOS", FEDIOS, "fedios/t1.yaml"),
        "headline": f"The order by the headline is {of('fedios_t1', rows, FEDIOS)}.",
        "printed": in_paper("fedios_t1", rows, FEDIOS),
        "common": "The common model alone has "
        f"{own.shown('last_k', 'global', 'after_aggregation')} after aggregation, the individual one "
        f"{own.shown('last_k', 'individual')} after training, and both together {own.headline()}.",
        "projections": f"Without orthogonal projections {gap(value['FediOS'], value[without])} are lost "
        f"(printed: {gap(ablation['FediOS'], ablation[without])}).",
        "personal": f"Without personal extractors the accuracy is {gap(value[alone], value['FediOS'])} "
        f"higher, where the paper loses {gap(ablation['FediOS'], ablation[alone])}.",
        "moon": f"FedAvg is {gap(value['FedAvg'], value['MOON'])} above MOON (printed: "
        f"{gap(beside['FedAvg'], beside['MOON'])}).",
        "fedrod": "FedRoD is ahead of FedAvg in the paper and behind it here. After aggregation it has "
        f"{gap(before['FedRoD'], before['FedAvg'])} more than FedAvg, but five epochs on a client's own "
        f"images then bring it {gap(after['FedRoD'], before['FedRoD'])}, and FedAvg "
        f"{gap(after['FedAvg'], before['FedAvg'])}.",
        "three seeds": f"Over three seeds the order is {ranked(seeds)}.",
        "seeds": f"Over three seeds FediOS has {over_seeds('fedios_t1', 'FediOS', FEDIOS, range(3))}, and "
        f"without personal extractors {over_seeds('fedios_t7', alone, FEDIOS, range(3))}. Without orthogonal "
        f"projections it has {over_seeds('fedios_t7', without, FEDIOS, range(3))}, which is "
        f"{gap(seeds['FediOS'], mean(three_without))}"
        " less.",
        "cosine": f"With cosines of the features before the projection FediOS has "
        f"{over_seeds('fedios_t7', 'FediOS, cosine', FEDIOS, range(3))}, and cannot be told",
        "fedavg": "FedAvg differs from the variant without personal extractors by the projection alone, and "
        "with seed 0 has "
        f"{gap(value[alone], value['FedAvg'])} less.",
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
    rows = ["Local", "FedAvg", "Ditto", "FediOS"]
    lead = [
        run("fedios_t1", "FediOS", CIFAR100).value("headline"),
        run("fedios_t1", "FedAvg", CIFAR100).value("headline"),
    ]
    return {
        "rounds": rounds("fedios_t1", "FediOS", CIFAR100, "fedios/t1.yaml"),
        "headline": f"The order by the headline is {of('fedios_t1', rows, CIFAR100)}.",
        "printed": in_paper("fedios_t1", rows, CIFAR100),
        "lead": f"FediOS leads by {gap(*lead)}, and its own five evaluations have a deviation of "
        f"{run('fedios_t1', 'FediOS', CIFAR100).headline().split()[-1]}.",
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
        "printed": in_paper("dcpfl_t1", rows, DCPFL),
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
    assert names(ranked(over))[:3] == ["DC-PFL", "DC-PFL w/o GC", "FedAvg"]
    middle = [over[row] for row in ("FedAvg", "Local-T", "FML", "FedGH")]
    return {
        "local": f"It is ahead of Local-T by {ahead('Local-T')}, of FedAvg by {ahead('FedAvg')}, of FedGH by "
        f"{ahead('FedGH')}, and of DC-PFL without feature-level calibration by {ahead('DC-PFL w/o AL')}.",
        "gc": f"Of calibrating the classifier nothing can be said: {ahead('DC-PFL w/o GC')}.",
        "order": f"Over three seeds the order is {ranked(over)}.",
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


def statements() -> dict[str, dict[str, str]]:
    """Return the sentences with numbers, by the heading of their section."""
    return {
        "All methods on embedded digits": {},
        "Fed-CO2, Table 3: label skew on CIFAR-10": {
            "rounds": rounds("fedco2_t3", "Fed-CO2", PATHOLOGICAL, "fedco2/t3.yaml"),
            **{f"pathological {name}": text for name, text in t3(PATHOLOGICAL).items()},
            **{f"pathological {name}": text for name, text in t3_seeds(PATHOLOGICAL).items()},
            **{f"dirichlet {name}": text for name, text in t3(DIRICHLET).items()},
            **{f"dirichlet {name}": text for name, text in t3_seeds(DIRICHLET).items()},
            **t3_dirichlet(),
            **t3_long(),
            **bfloat16(),
        },
        "Fed-CO2, Table 7: three domains of digits": t7(),
        "Fed-CO2, Table 1: Office-Caltech10": t1()
        | {f"transfers {name}": text for name, text in transfers().items()},
        "FDSE, Tables 1 and 3: Office-Caltech10": fdse_t1()
        | fdse_t1_seeds()
        | fdse_t3_seeds()
        | fdse_local(),
        "FDSE, Table 1: PACS": fdse_pacs(),
        "FDSE, Table 2: a domain left out, Office-Caltech10": fdse_t2(),
        "FediOS, Tables 1 and 7: Office-Caltech10": fedios_office()
        | {f"larger {name}": text for name, text in fedios_64().items()},
        "FediOS, Table 1: superclasses of the CIFAR-100 subset": fedios_cifar100(),
        "DC-PFL, Table 1: CIFAR-10, ten clients": dcpfl()
        | {f"fifth {name}": text for name, text in dcpfl_fifth().items()},
        "An outside check: niid_bench of Flower's baselines": niid(),
    }


STATEMENTS = statements()
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])


def joined(text: str) -> str:
    return " ".join(text.split())


def test_every_table_is_what_the_summaries_and_the_papers_say():
    shown, made = shown_tables(TEXT), tables()
    assert list(shown) == list(made)
    for name, rows in made.items():
        assert shown[name] == markdown(rows), f"{name}: python -m docs.results_page writes it anew"
    first, *sections = TEXT.split("\n## ")
    assert not re.search(r"\|.*\d\.\d.*\|", first), "the overview has no numbers"
    lines = sum(line.startswith("|") for part in sections for line in part.splitlines())
    assert lines == sum(len(rows) + 1 for rows in made.values()), "there are other tables"


def test_the_first_number_is_the_declared_headline():
    """The first number of a row is the headline of the declared protocol."""
    for name, (head, *rows) in tables().items():
        if name == "embedded_methods":
            continue
        assert head[1].startswith("headline"), name
        for row in rows:
            assert re.match(r"\d", row[1])
    for path in FOLDER.glob("*/*.json"):
        headline = json.loads(path.read_text())["headline"]
        row, column, seed = path.stem.split("--")
        own = Run(path.parent.name, row, column, int(seed.removeprefix("seed-")))
        assert own.value("headline") == headline["accuracy"]
        assert own.chosen("headline")["rounds"] == headline["rounds"]


@pytest.mark.parametrize(
    ("title", "name"), [(title, name) for title, found in STATEMENTS.items() for name in found]
)
def test_the_sentences_say_what_the_summaries_say(title, name):
    assert STATEMENTS[title][name] in joined(SECTIONS[title])


WORDS = "one|two|three|four|five|six|seven|eight|nine|ten|a|some"
NUMBER = rf"(?<![\w.])\d*\.\d+|\d+ (?:points?|%|per cent)|\b(?:{WORDS}) points?"
"""What a sentence may not have without a test: decimals, and numbers of points."""


@pytest.mark.parametrize("title", SECTIONS)
def test_there_are_no_other_numbers(title):
    text = re.sub(r"```.*?```", "", SECTIONS[title], flags=re.S)
    text = joined("\n".join(line for line in text.splitlines() if not line.startswith(("|", "!["))))
    for statement in STATEMENTS[title].values():
        text = text.replace(statement, "")
    text = re.sub(r"`[^`]*`|alpha \d\.\d|\.5 and \.5", "", text)  # settings
    assert re.findall(NUMBER, text) == []


def test_what_is_said_of_orders_without_numbers():
    """The overview, and sentences such as "this is the printed order"."""
    for column, rows in FEDCO2_T3.items():
        higher = ("FedPer", "FedRoD", "FedProx")
        beside = names(ranked(paper("fedco2_t3", rows, column)), *higher)
        assert names(of("fedco2_t3", rows, column, "last_k"), *higher) == beside
        by_headline = names(of("fedco2_t3", rows, column))
        assert by_headline[0] == "FedPer"
        assert by_headline.index("FedBN") > by_headline.index("SingleSet")
    headline, last = (
        {row: mean(values) for row, values in t3_values(DIRICHLET, choice).items()}
        for choice in ("headline", "last_k")
    )
    beside = names(ranked(paper("fedco2_t3", T3_SEEDS, DIRICHLET)), "FedPer")
    assert names(ranked(last), "FedPer") == beside
    assert names(ranked(headline))[:2] == ["FedPer", "Fed-CO2"]
    each = t3_values(DIRICHLET, "headline")
    assert [a > b for a, b in zip(each["FedPer"], each["Fed-CO2"])] == [True, False, True]
    shown = names(of("fedco2_t3", FEDCO2_T3[DIRICHLET], DIRICHLET, "last_k"))
    beside = names(ranked(paper("fedco2_t3", shown, DIRICHLET)))
    assert [name for name in shown if shown.index(name) < beside.index(name)] == list(higher)
    rivals = [row for row in DCPFL_ROWS if not row.startswith("DC-PFL")]
    assert max(rivals, key=paper("dcpfl_t1", rivals, DCPFL).get) == "FedGH"
    for last in (
        min(paper("dcpfl_t1", DCPFL_ROWS, DCPFL).items(), key=lambda pair: pair[1])[0],
        names(of("dcpfl_t1", DCPFL_ROWS, DCPFL))[-1],
    ):
        assert last == "FML"
    rows = ["SingleSet", "FedAvg", "FedBN", "Fed-CO2"]
    for choice in ("headline", "last", "last_k"):
        shown = names(of("fedco2_t1", rows, OFFICE, choice))
        assert shown == names(ranked(paper("fedco2_t1", rows, "Avg")))
    transferred = [t for _, t in transfers().items() if "no transfer" in t]
    assert len({tuple(re.findall("no [a-z -]*transfer", text)) for text in transferred}) == 2

    elsewhere = ("Local", "PartialFed", "FedFA", "FedHEAL")
    beside = names(ranked(paper("fdse_t1", FDSE, f"{OFFICE} ALL")), *elsewhere)
    orders = {choice: names(of("fdse_t1", FDSE, OFFICE, choice)) for choice in ("headline", "last", "last_k")}
    same = {c: [name for name in order if name not in elsewhere] == beside for c, order in orders.items()}
    assert orders["headline"][-1] == orders["last_k"][-1] == "PartialFed"
    assert same == {"headline": True, "last": False, "last_k": False}
    assert orders["headline"][0] == "FDSE"
    assert orders["last"][0] == orders["last_k"][0] == "Local"
    parts = [run("fdse_t3", row, OFFICE).value("headline") for row in FDSE_T3]
    assert parts == sorted(parts)
    assert run("fdse_t1", "FDSE", OFFICE).value("headline") <= parts[1]

    unseen = {
        choice: [mean(fdse_t2_values(row, choice)) for row in ("FDSE", "FedBN", "FedAvg")]
        for choice in ("best_val", "last", "last_k")
    }
    assert all(values[0] == max(values) for values in unseen.values())
    assert {choice: values[1] > values[2] for choice, values in unseen.items()} == {
        **{"best_val": True, "last": False, "last_k": False}
    }
    slow, first = (run(FEDIOS_ROWS[row], row, FEDIOS).value("headline") for row in ("FedGH", "FediOS"))
    assert slow > first
    office = names(of("fedios_t1", FEDIOS_T1, FEDIOS))
    assert office == ["FediOS", "Local", "Ditto", "FedAvg", "MOON", "FedRoD"]
    beside = names(ranked(paper("fedios_t1", office, FEDIOS)))
    assert beside == ["FediOS", "Ditto", "FedRoD", "Local", "FedAvg", "MOON"]


def test_every_summary_is_on_the_page():
    tables()
    statements()
    assert {own.path for own in USED} == set(FOLDER.glob("*/*.json"))


def test_the_summaries_are_those_of_known_tables():
    known = {f"{name}_{table}" for name, found in known_tables().items() for table in found}
    ours = {
        "fedco2_transfers",
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
    assert said in " ".join(TEXT.split())


def test_all_methods_have_three_seeds_on_embedded_digits():
    assert all(seeds == ["0", "1", "2"] for seeds in embedded_seeds().values())
    assert [row[0] for row in embedded()[1:]] == list(Table.load(EXAMPLES / "embedded" / "methods.yaml").rows)


def test_what_is_said_of_all_methods():
    def order(column):
        values = {row[0]: mean(embedded_values(row[0], column, "personal")) for row in embedded()[1:]}
        return sorted(values, key=lambda name: -values[name]), values

    domains, values = order("domains")
    level = ["FedProto", "DC-PFL", "FD", "FedGH", "LG-FedAvg", "FediOS", "Fed-CO2", "APFL"]
    assert set(domains[: len(level) + 1]) == {*level, "Local"}
    assert max(values[name] for name in level) - values["Local"] < 0.015
    one_for_all = ["FedAvg", "FedProx", "MOON", "SCAFFOLD", "FedDyn", "FedAvgM", "FedHEAL", "FedFA", "FedSR"]
    assert max(values[name] for name in one_for_all) < values["Local"] - 0.03
    labels, values = order("labels")
    assert set(labels[:2]) == {"FedRep", "FedRoD"}
    assert set(labels[2:7]) == {"FedALA", "FedDyn", "COPA", "Fed-CO2", "FedPer"}
    assert labels[-1] == "FedProto"
    assert values["Local"] < values["FedPer"] - 0.05
    globals_ = {name: mean(embedded_values(name, "domains", "global")) for name in one_for_all}
    assert mean(embedded_values("PartialFed", "domains", "global")) < min(globals_.values()) - 0.3
