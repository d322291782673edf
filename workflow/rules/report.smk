# From predictions to the page. A change of the study's words or of the template starts here.


rule score:
    input:
        lambda w: [PATHS.predictions(run, i) for run, asked in PLANS[w.study].asked.items() for i in asked],
    output:
        scores=PATHS.study("{study}") / "scores.csv",
        missing=PATHS.study("{study}") / "missing.json",
    log:
        "results/logs/score/{study}.log",
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code("analysis.score", *plugins("metric", PLANS[w.study].study.metrics)),
    shell:
        "python -m fedshift score {params.study} > {log:q} 2>&1"


rule ledger:
    input:
        lambda w: [PATHS.data(key) / "images.npy" for key, d in PLANS[w.study].data.items() if not d.dataset.shape],
    output:
        PATHS.study("{study}") / "ledger.csv",
    log:
        "results/logs/ledger/{study}.log",
    conda:
        "../../envs/train.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code(
            "planning.communication", *(p for r in PLANS[w.study].runs.values() for p in r.plugins)
        ),
    shell:
        "python -m fedshift ledger {params.study} --write > {log:q} 2>&1"


rule summarise:
    input:
        rules.score.output.scores,
        published=lambda w: published.inputs(PLANS[w.study].published),
        ledger=lambda w: [PATHS.study(w.study) / "ledger.csv"] if of_ledger(PLANS[w.study]) else [],
        rounds=lambda w: [PATHS.run(run) / "rounds.parquet" for run in PLANS[w.study].runs if of_rounds(PLANS[w.study])],
    output:
        summary=PATHS.study("{study}") / "summary.csv",
        effects=PATHS.study("{study}") / "effects.csv",
        comparison=PATHS.study("{study}") / "comparison.csv",
        trends=PATHS.study("{study}") / "trends.csv",
        unseen=PATHS.study("{study}") / "unseen.csv",
        tables=expand(
            PATHS.study("{{study}}") / "tables" / "{table}.{form}",
            table=["sites", "overview", "comparison"],
            form=["csv", "md", "tex"],
        ),
    log:
        "results/logs/summarise/{study}.log",
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=study.code("report.summary"),
    shell:
        "python -m fedshift summarise {params.study} > {log:q} 2>&1"


rule figure:
    input:
        rules.score.output.scores,
        rules.summarise.output.effects,
        rules.summarise.output.summary,
        lambda w: [PATHS.run(run) / "rounds.parquet" for run in PLANS[w.study].runs],
    output:
        report(
            PATHS.study("{study}") / "figures" / "{figure}.svg",
            caption="../report/figure.rst",
            category="{study}",
            subcategory="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        "results/logs/figure/{study}-{figure}.log",
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code("analysis.results", *plugins("figure", [w.figure])),
    shell:
        "python -m fedshift figure {params.study} {wildcards.figure} > {log:q} 2>&1"


rule page:
    input:
        rules.score.output,
        rules.summarise.output,
        figures=lambda w: [PATHS.study(w.study) / "figures" / f"{f}.svg" for f in PLANS[w.study].study.figures],
        manifests=lambda w: [PATHS.run(run) / "manifest.json" for run in PLANS[w.study].runs],
    output:
        page=report(
            PATHS.page("{study}"),
            caption="../report/page.rst",
            category="{study}",
            labels={"page": "the whole report"},
        ),
        headline=PATHS.study("{study}") / "headline.json",
    log:
        "results/logs/page/{study}.log",
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        cards=lambda w: [digest.of(repr(data.card)) for data in PLANS[w.study].data.values()],
        code=[study.code("report.page"), *(TEMPLATES[name] for name in ("page.html.j2", "macros.html.j2", "page.css"))],
    shell:
        "python -m fedshift page {params.study} > {log:q} 2>&1"


localrules:
    index,


# All studies of the folder, those of other calls as they were left. No page depends on it.
rule index:
    input:
        [PATHS.study(name) / "headline.json" for name in PLANS],
        [path for path in [Path(config["studies"]).parent / "papers.csv"] if path.exists()],
    output:
        INDEX,
    log:
        "results/logs/index.log",
    conda:
        "../../envs/report.yaml"
    params:
        studies=lambda w: quote(str(config["studies"])),
        view=lambda w: digest.of(repr(published.said(Path(config["studies"])))),
        code=[
            study.code("report.gallery"),
            *(TEMPLATES[name] for name in ("index.html.j2", "macros.html.j2", "page.css")),
        ],
    shell:
        "python -m fedshift index --studies {params.studies} > {log:q} 2>&1"
