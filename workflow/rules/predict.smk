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
        code=lambda w: study.code("jobs.predict", *run_of(w).plugins, *CALL.inferences[w.inference]),
    shell:
        "python -m fedshift predict {params.study} {wildcards.run} {wildcards.inference} --threads {threads} > {log:q} 2>&1"
