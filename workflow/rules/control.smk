# There is one control for each partition, whichever runs are trained on it: it asks how far colour and texture go.


rule control:
    input:
        data=lambda w: prepared(CALL.controls[w.partition].data),
        partition=lambda w: PATHS.partition(w.partition),
    output:
        PATHS.control("{partition}"),
    log:
        PATHS.log("control", "{partition}"),
    conda:
        "../../envs/report.yaml"
    threads: 1
    params:
        study=asked,
        code=study.code("jobs.control"),
    shell:
        "python -m fedshift control {params.study} {wildcards.partition} --threads {threads} > {log:q} 2>&1"
