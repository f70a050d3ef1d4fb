"""Compare two methods on embedded data, from Python: python examples/quickstart.py."""

from rayfl import Federation, Inline, Training
from rayfl.data import EmbeddedDigits
from rayfl.methods import FedAvg, FedCO2
from rayfl.nets import CNNB

for method in (FedAvg(), FedCO2(mu=0.5)):
    federation = Federation(
        method=method,
        data=EmbeddedDigits(),
        net=CNNB(),
        clients=5,
        rounds=3,
        training=Training(lr=0.1),
        engine=Inline(),  # Ray() runs the same on actors
        quiet=True,
    )
    result = federation.run()
    tests = result.clients.query("part == 'test' and view == 'personal'")
    print(f"{type(method).__name__}: {result.figure:.1%} on average; records in {result.folder}")
    print(tests.query("round == round.max()")[["domain", "samples", "figure"]].to_string(index=False))
