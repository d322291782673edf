"""Flower's simulation: a server app and a client app, whose clients share one core of Ray."""

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from .works import After, Work, load


def train(work: Work, rounds: int, after: After) -> None:
    client, server = ClientApp(), ServerApp()
    path, network, sites = work.path, work.network, len(work.data)  # the client app is sent to other processes

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        work = load(path)
        x, y = list(work.data.values())[int(context.node_config["partition-id"])]
        model, criterion = work.network.train(), work.loss()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
        for inputs, labels in DataLoader(TensorDataset(x, y), work.batch, shuffle=True):
            optimiser.zero_grad()
            criterion(model(inputs), labels).backward()
            optimiser.step()
        reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(reply), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def evaluate(number: int, arrays: ArrayRecord) -> None:
            if number:
                after(arrays.to_torch_state_dict)

        strategy: Any = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)

    resources = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=sites, backend_config=resources)
