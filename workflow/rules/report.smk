# These rules lead from predictions to the page. A change of a title or of the template starts here.


rule score:
    input:
        lambda w: [PATHS.predictions(run, job) for run, job in PLANS[w.study].prediction_jobs.items()],
    output:
        scores=PATHS.study_files("{study}").scores,
        missing=PATHS.study_files("{study}").missing,
    log:
        PATHS.log("score", "{study}"),
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code("analysis.score", *plugins("metric", PLANS[w.study].study.metrics)),
    shell:
        "python -m fedshift score {params.study} > {log:q} 2>&1"


# Only where published numbers are about traffic. It builds networks, which the environment of the page has no library for.
rule ledger:
    input:
        lambda w: [file for data in PLANS[w.study].data.values() if not data.dataset.shape for file in prepared(data)],
    output:
        PATHS.study_files("{study}").ledger,
    log:
        PATHS.log("ledger", "{study}"),
    conda:
        "../../envs/train.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code(
            "analysis.communication", *(p for r in PLANS[w.study].runs.values() for p in r.plugins)
        ),
    shell:
        "python -m fedshift ledger {params.study} --write > {log:q} 2>&1"


rule report:
    input:
        rules.score.output,
        controls=lambda w: [PATHS.control(key) for key in PLANS[w.study].controls],
        published=lambda w: published_words.inputs(PLANS[w.study].published),
        ledger=lambda w: [PATHS.study_files(w.study).ledger] if of_ledger(PLANS[w.study]) else [],
        divergence=lambda w: [PATHS.study_files(w.study).divergence] if PLANS[w.study].measures_divergence else [],
        rounds=lambda w: [PATHS.run_files(run).rounds for run in PLANS[w.study].runs],
        manifests=lambda w: [PATHS.run_files(run).manifest for run in PLANS[w.study].runs],
    output:
        *PATHS.study_files("{study}").reported,
        page=report(
            PATHS.page("{study}"),
            caption="../report/page.rst",
            category="{study}",
            labels={"page": "the whole report"},
        ),
        figures=report(
            directory(PATHS.study_files("{study}").figures),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category="{study}",
            subcategory="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        PATHS.log("report", "{study}"),
    conda:
        "../../envs/report.yaml"
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        cards=lambda w: [digest.of(repr(data.card)) for data in PLANS[w.study].data.values()],
        code=lambda w: study.code("page.page", *plugins("figure", PLANS[w.study].figures)),
        made=[study.code("page.summary"), *(study.code(table.worker) for table in SUMMARISED)],
        templates=[code for name, code in TEMPLATES.items() if name not in OTHER_PAGES],
    shell:
        "python -m fedshift report {params.study} > {log:q} 2>&1"


localrules:
    index,


# The index lists all studies of the folder, also those of earlier calls. No page depends on it.
rule index:
    input:
        [PATHS.study_files(name).headline for name in PLANS],
        [path for path in [papers(Path(config["studies"]))] if path.exists()],
    output:
        INDEX,
    log:
        "results/logs/index.log",
    conda:
        "../../envs/report.yaml"
    params:
        studies=lambda w: quote(str(config["studies"])),
        view=lambda w: digest.of(repr(published_words.said(Path(config["studies"])))),
        code=[
            study.code("page.gallery"),
            *(TEMPLATES[name] for name in ("base.html.j2", "index.html.j2", "macros.html.j2", "page.css")),
        ],
    shell:
        "python -m fedshift index --studies {params.studies} > {log:q} 2>&1"
