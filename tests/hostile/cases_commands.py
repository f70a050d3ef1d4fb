"""Command lines: options and values of ``rayfl.run``, reports and pictures, and code of the user's own."""

import os
from pathlib import Path

from rayfl.errors import BadCode, BadValue, Conflict, InUse, Missing, Shortage, Unknown, UserError
from tests.hostile.harness import CANARY, Case, put_run

TINY = (
    "run --engine Inline --data Synthetic --data.train 200 --data.test 60 --net LeNet --rounds 1 --output out"
)

RESNET = "torchvision.models.resnet18"

# options behind those of a tiny run -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "---rounds 3": (Unknown, "rounds"),
    "--=3": (Unknown, "=3"),
    "-x": (Unknown, "x"),
    "positional": (Unknown, "positional"),
    "--rounds": (Missing, "rounds"),
    "--rounds=": (BadValue, "rounds"),
    "--rounds=3=4": (BadValue, "rounds"),
    f"--rounds {'9' * 5000}": (BadValue, "rounds"),
    "--row A": (Conflict, "row"),
    "--sampling Cyclical": (Unknown, "sampling"),
    "--training nowhere.yaml": (BadValue, "training"),
    "--loggers [tensorboard,tensorboard]": (BadValue, "loggers"),
    # what does not go together
    "--clients 999999999999": (Conflict, "clients"),
    "--clients 201": (Conflict, "clients"),
    "--data.partition Pathological --clients 7": (Conflict, "data.partition"),
    "--data.shape [3,8,8]": (Conflict, "net"),
    "--training.batch_size 1 --net CNNB": (Conflict, "training.batch_size"),
    "--engine Ray --engine.actors 2 --engine.clients_per_actor 1": (Conflict, "engine.actors"),
    "--method FedCO2 --method.intra sideways": (BadValue, "method.intra"),
    "--unseen nowhere": (Unknown, "unseen"),
    "--unseen_clients 99": (Conflict, "unseen_clients"),
    "--unseen photo --unseen_clients 0.2": (Conflict, "unseen_clients"),
    "--data.domains 3 --clients 4 --unseen domain0": (Conflict, "unseen"),
    "--training.schedule Exponential": (Missing, "training.schedule.decay"),
    "--training.optimiser Adam --training.momentum 0.9": (Conflict, "training.momentum"),
    "--training.optimiser SGD --training.optimiser.nesterov true": (Conflict, "training.optimiser.nesterov"),
    "--method SCAFFOLD --training.optimiser AdamW": (Conflict, "training.optimiser"),
    "--method FediOS --method.rank 20": (Conflict, "method.rank"),
    "--method DCPFL --net [LeNet,FedAvgCNN]": (Conflict, "net"),
    "--method FedAvg --net [LeNet,CNN]": (Conflict, "net"),
    "--method FDSE": (Conflict, "net"),
    "--net TokenMLP": (Conflict, "net"),
    "--unseen_clients 1 --method FedBN": (Conflict, "net"),
    "--protocol FDSE": (Conflict, "protocol"),
    "--protocol.patience 5": (Conflict, "protocol"),
    "--protocol.point unseen": (Conflict, "protocol.point"),
    "--protocol.view onlin": (Unknown, "protocol.view"),
    "--data.train 999999999999": (Shortage, ""),
    # classes
    "--engine Nosuch": (Unknown, "engine"),
    "--engine rayfl.engine.Engine": (BadValue, "engine"),
    "--engine rayfl.methods.FedAvg": (BadValue, "engine"),
    "--engine.actors 2": (Unknown, "engine.actors"),
    "--protocol=": (Unknown, "protocol"),
    "--protocol rayfl.evaluation.Protocol": (BadValue, "protocol"),
    "--protocol null": (BadValue, "protocol"),
    "--protocol []": (BadValue, "protocol"),
    "--data CIFAR10 --data.root nowhere": (Missing, "batches.meta"),
    "--method .": (BadValue, "method"),
    "--method nosuch.Method": (Missing, "method"),
    # nets
    "--net nosuch": (Unknown, "net"),
    "--net .": (Unknown, "net"),
    "--net a..b": (Unknown, "net"),
    "--net [[LeNet]]": (BadValue, "net"),
    "--net LeNet --net.x 1": (Unknown, "net.x"),
    "--net FDSE-AlexNet(G=4)": (Unknown, "net"),
    "--net.number 3": (Unknown, "net.number"),
    "--net rayfl.methods.FedAvg": (BadCode, "net"),
    "--net nosuch.module": (Missing, "net"),
    "--net rayfl.nosuch": (Unknown, "net"),
    "--net rayfl.system.files.os.system": (Missing, "net"),
    "--net Module": (Missing, "net.path"),
    "--net Module --net.path os.system": (BadValue, "net"),
    "--net Module --net.path rayfl.methods.FedAvg": (BadCode, "net"),
    f"--net Module --net.path {RESNET} --net.arguments 3": (BadValue, "net.arguments"),
    f"--net Module --net.path {RESNET} --net.head conv1": (Unknown, "net.head"),
    f'--net Module --net.path {RESNET} --net.arguments {{"weights":1}}': (BadValue, "net.arguments.weights"),
    "--net torchvision.models.squeezenet1_0": (Unknown, "net.head"),
    # places
    "--output file": (InUse, "file"),
    "--output file/x": (BadValue, "file/x"),
    "--output full": (InUse, "full"),
    "--output=": (BadValue, "output"),
    "--output \udcff\udcfe": (BadValue, "output"),
}

# a whole command line -> what is wrong, and where
COMMANDS: dict[str, tuple[type[UserError], str]] = {
    "run --resume": (Missing, "resume"),
    "run --resume nowhere": (Missing, "nowhere"),
    "run --resume full": (Missing, "full"),
    "run --resume nowhere --seed 3": (Conflict, "resume"),
    "run --nosuch.help x": (Unknown, "nosuch.help"),
    "table fedco2/t3 --lr 0.1": (Unknown, "lr"),
    "report": (Missing, "RUN"),
    "report nowhere": (Missing, "nowhere"),
    "report \udcff": (BadValue, "runs"),
    "report nowhere --foo": (Unknown, "foo"),
    "report nowhere --view": (Missing, "view"),
    "report nowhere --against ../.. x": (Unknown, "against"),
    "report run --view nosuch": (Unknown, "view"),
    "report run --by nosuch": (Unknown, "by"),
    "report run --point after_training": (Unknown, "point"),
    "report run --save a.md a.pdf": (BadValue, "a.pdf"),
    "report run --columns headlin": (Unknown, "columns"),
    "figure nosuch": (Unknown, "kind"),
    "figure rounds run": (Missing, "save"),
    "figure rounds run --save picture": (BadValue, "save"),
    "figure rounds run --save .png": (BadValue, "save"),
    "figure bars run --save PICTURE.EPS": (BadValue, "save"),
    "figure rounds run --save file/x.png": (Shortage, "file/x.png"),
    "figure rounds run --save folder.png": (Shortage, "folder.png"),
    "figure bars run --save x.png --names A": (BadValue, "names"),
    "figure bars run --save x.png --size 5,x": (BadValue, "size"),
    "figure rounds run --save x.png --target x": (BadValue, "target"),
    "figure rounds run --save x.png --quantity speed": (Unknown, "quantity"),
    "figure rounds run --save x.png --panels nosuch": (Unknown, "panels"),
    "figure bars run --save x.png --views nosuch": (Unknown, "view"),
    "figure sweep run --save x.png": (Missing, "over"),
    "figure sweep run --save x.png --over nosuch": (Unknown, "over"),
    "figure labels run --save x.png --by clients": (Unknown, "by"),
    "run --resume a\0b": (Missing, "a\0b"),
    "table a\0b": (Missing, "a\0b"),
    "report a\0b": (Missing, "a\0b"),
    f"{TINY} --output a\0b": (BadValue, "output"),
    f"{TINY} --data CIFAR10 --data.root a\0b": (BadValue, "data.root"),
    "run --net=&a[*a]": (Unknown, "net"),
    f"run --net={'[' * 500}{']' * 500}": (BadValue, "net"),
    f"{TINY} --net $(touch${{IFS}}{CANARY})": (Unknown, "net"),
    f"{TINY} --net \x1b[2J\x07": (Unknown, "net"),
}

OWN = """\
import os
from rayfl.data import IID, Synthetic
from rayfl.methods import FedAvg
from rayfl.nets.convolutional import LeNet
def raises(shape, classes):
    raise RuntimeError("no such \\x1b[2J luck\\nsecond line")
def leaves(shape, classes):
    raise SystemExit(3)
def nothing(shape, classes):
    return None
def takes_none():
    return None
def two(shape, classes):
    return LeNet().build(shape, classes + 1)
def forward(shape, classes):
    net = LeNet().build(shape, classes)
    net.forward = lambda x: {}["x"]
    return net
class Load(Synthetic):
    def load(self):
        raise RuntimeError("bad load")
class Missing(Synthetic):
    def load(self):
        return open("nowhere.bin")
class Made(Synthetic):
    def __init__(self, x: int = 1):
        raise RuntimeError("bad start")
class Divided(IID):
    def assign(self, dataset, clients, rng):
        return {}[3]
class Bound(FedAvg):
    def prepare(self, context):
        raise RuntimeError("bad setup")
class Forgets(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        pass
"""

# options -> what is wrong with code of the user's own that raises; its traceback follows
RAISING: dict[str, tuple[type[UserError], str]] = {
    "--net own.raises": (BadCode, "net"),
    "--net own.leaves": (BadCode, "leaves"),
    "--net own.forward": (BadCode, "net"),
    "--net [LeNet,own.raises] --method Local": (BadCode, "net"),
    "--net broken.net": (BadCode, "broken.py:1"),
    "--net bad.net": (BadCode, "<module>"),
    "--net needs.net": (Missing, "net"),
    "--data own.Load": (BadCode, "Load.load"),
    "--data own.Missing": (BadCode, "Missing.load"),
    "--data own.Made": (BadCode, "Made.__init__"),
    "--data.partition own.Divided": (BadCode, "Divided.assign"),
    "--method own.Bound": (BadCode, "Bound.prepare"),
    "--method broken.Method": (BadCode, "broken.py:1"),
}

# options -> what is wrong with code of the user's own that does not fit
UNFIT: dict[str, tuple[type[UserError], str]] = {
    "--net own.nothing": (BadCode, "net"),
    "--net own.takes_none": (BadCode, "net"),
    "--net own.two": (BadCode, "net"),
    "--net own.nosuch": (Unknown, "net"),
    "--net own.os": (BadValue, "net"),
    "--method own.Forgets": (BadCode, "Forgets"),
    "--method own.Nosuch": (BadValue, "method"),
    "--method own.Load": (BadValue, "method"),
}

FILES = {
    "own.py": OWN,
    "broken.py": "def net(:\n",
    "bad.py": 'raise ValueError("at import")\n',
    "needs.py": "import nosuchmodule\n",
}


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "fifo")


def fifo_and_run(folder: Path) -> None:
    fifo(folder)
    put_run(folder)


TAG = f"!!python/object/apply:os.system ['touch {CANARY}']"
PLACES = {"file": "", "full/file": "", "folder.png/file": ""}

CASES = [
    *(
        Case(line[:100], f"{TINY} {line}", *wrong, files=PLACES, prepare=fifo)
        for line, wrong in LINES.items()
    ),
    *(
        Case(line[-100:], line, *wrong, files=PLACES, prepare=fifo_and_run if " run " in line else fifo)
        for line, wrong in COMMANDS.items()
    ),
    *(
        Case(f"own: {line}", f"{TINY} {line}", *wrong, files=FILES, traceback=True)
        for line, wrong in RAISING.items()
    ),
    *(Case(f"own: {line}", f"{TINY} {line}", *wrong, files=FILES) for line, wrong in UNFIT.items()),
    Case("a value with a tag", ["run", "--training", TAG], BadValue, "training"),
]
