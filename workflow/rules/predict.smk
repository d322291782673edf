# One job for a run: all inferences share its network and images. With a further inference the file has another name, and
# the job takes from the earlier file what that holds already.
rule predict:
    input:
        data=lambda w: prepared(run_of(w).data),
        partition=lambda w: PATHS.partition(run_of(w).partition_id),
        model=PATHS.run_files("{run}").model,
        clients=PATHS.run_files("{run}").clients,
        spec=PATHS.run_files("{run}").spec,
    output:
        PATHS.predictions("{run}", "{inference}"),
    log:
        PATHS.log("predict", "{run}-{inference}"),
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=asked,
        code=lambda w: accept.predict_code(run_of(w), *CALL.inferences[w.inference]),
    shell:
        "python -m fedshift predict {params.study} {wildcards.run} {wildcards.inference} --threads {threads} > {log:q} 2>&1"


# One job for a study: it passes each test image again, and keeps no features.
rule divergence:
    input:
        data=lambda w: [file for data in PLANS[w.study].data.values() for file in prepared(data)],
        partitions=lambda w: {PATHS.partition(run.partition_id) for run in PLANS[w.study].runs.values()},
        models=lambda w: [PATHS.run_files(run).model for run in PLANS[w.study].runs],
        clients=lambda w: [PATHS.run_files(run).clients for run in PLANS[w.study].runs],
    output:
        PATHS.study_files("{study}").divergence,
    log:
        PATHS.log("divergence", "{study}"),
    conda:
        "../../envs/train.yaml"
    threads: 1
    params:
        study=named,
        view=lambda w: PLANS[w.study].view,
        code=lambda w: study.code(
            "analysis.divergence",
            *(p for r in PLANS[w.study].runs.values() for p in r.plugins),
            *PLANS[w.study].inferences.values(),
        ),
    shell:
        "python -m fedshift divergence {params.study} --threads {threads} > {log:q} 2>&1"
