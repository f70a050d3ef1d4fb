"""Command lines: options and values of ``rayfl.run``, reports and pictures, and code of the user's own."""

import os

from rayfl.errors import BadCode, BadData, BadValue, Conflict, InUse, Missing, Shortage, Unknown, UserError
from tests.hostile.harness import CANARY, Case, put_run

TINY = (
    "run --engine Inline --data Synthetic --data.train 200 --data.test 60 --net LeNet --rounds 1 --output out"
)

# options behind those of a tiny run -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "--rouns 3": (Unknown, "rouns"),
    "--training.epoch 3": (Unknown, "training.epoch"),
    "---rounds 3": (Unknown, "rounds"),
    "--=3": (Unknown, "=3"),
    "-x": (Unknown, "x"),
    "positional": (Unknown, "positional"),
    "--rounds 3 4": (Unknown, "4"),
    "--rounds": (Missing, "rounds"),
    "--rounds=": (BadValue, "rounds"),
    "--rounds=3=4": (BadValue, "rounds"),
    "--rounds 0": (BadValue, "rounds"),
    "--rounds -1": (BadValue, "rounds"),
    "--rounds 1e3": (BadValue, "rounds"),
    "--rounds 99999999999999999999": (BadValue, "rounds"),
    f"--rounds {'9' * 5000}": (BadValue, "rounds"),
    "--clients 0": (BadValue, "clients"),
    "--clients 99999999999999999999": (BadValue, "clients"),
    "--clients 999999999999": (Conflict, "clients"),
    "--participation 0": (BadValue, "participation"),
    "--participation 1.01": (BadValue, "participation"),
    "--participation nan": (BadValue, "participation"),
    "--participation inf": (BadValue, "participation"),
    "--seed 1e400": (BadValue, "seed"),
    "--seed 99999999999999999999": (BadValue, "seed"),
    "--seed null": (BadValue, "seed"),
    "--averaging median": (BadValue, "averaging"),
    "--eval_every -1": (BadValue, "eval_every"),
    "--checkpoint_every -1": (BadValue, "checkpoint_every"),
    "--checkpoint_every 0.5": (BadValue, "checkpoint_every"),
    "--on_bad_update ignore": (BadValue, "on_bad_update"),
    "--loggers perhaps": (BadValue, "loggers"),
    "--loggers [tensorboard,tensorboard]": (BadValue, "loggers"),
    "--quiet": (Missing, "quiet"),
    "--unseen nowhere": (Unknown, "unseen"),
    "--unseen_clients all": (BadValue, "unseen_clients"),
    "--unseen_clients 99": (Conflict, "unseen_clients"),
    "--unseen photo --unseen_clients 0.2": (Conflict, "unseen_clients"),
    "--common_test perhaps": (BadValue, "common_test"),
    "--cell 3": (BadValue, "cell"),
    "--row A": (Conflict, "row"),
    # training
    "--training 3": (BadValue, "training"),
    "--training nowhere.yaml": (BadValue, "training"),
    "--training.lr 0": (BadValue, "training.lr"),
    "--training.lr true": (BadValue, "training.lr"),
    "--training.lr 1e400": (BadValue, "training.lr"),
    "--training.lr [1]": (BadValue, "training.lr"),
    "--training.batch_size 0": (BadValue, "training.batch_size"),
    "--training.batch_size 99999999999999999999": (BadValue, "training.batch_size"),
    "--training.epochs 0": (BadValue, "training.epochs"),
    "--training.schedule Linear": (Unknown, "training.schedule"),
    "--training.schedule Exponential": (Missing, "training.schedule.decay"),
    "--training.schedule Exponential --training.schedule.decay 2": (BadValue, "training.schedule.decay"),
    "--training.schedule Cosine --training.schedule.warmup -1": (BadValue, "training.schedule.warmup"),
    "--training.schedule Cosine --training.schedule.decay 1": (Unknown, "training.schedule.decay"),
    "--training.optimiser Adamm": (Unknown, "training.optimiser"),
    "--training.optimiser Adam --training.optimiser.beta1 1": (BadValue, "training.optimiser.beta1"),
    "--training.optimiser Adam --training.optimiser.eps 0": (BadValue, "training.optimiser.eps"),
    "--training.optimiser Adam --training.momentum 0.9": (Conflict, "training.momentum"),
    "--training.optimiser SGD --training.optimiser.nesterov true": (Conflict, "training.optimiser.nesterov"),
    "--training.optimiser.beta1 0.5": (Unknown, "training.optimiser.beta1"),
    "--method SCAFFOLD --training.optimiser AdamW": (Conflict, "training.optimiser"),
    "--training.momentum 1": (BadValue, "training.momentum"),
    "--training.weight_decay -1": (BadValue, "training.weight_decay"),
    "--training.clip -1": (BadValue, "training.clip"),
    "--training.precision float16": (BadValue, "training.precision"),
    "--training.last_batch lose": (BadValue, "training.last_batch"),
    # engine
    "--engine Nosuch": (Unknown, "engine"),
    "--engine rayfl.engine.Engine": (BadValue, "engine"),
    "--engine rayfl.methods.FedAvg": (BadValue, "engine"),
    "--engine.actors 2": (Unknown, "engine.actors"),
    "--engine.threads 0": (BadValue, "engine.threads"),
    "--engine.threads 1.5": (BadValue, "engine.threads"),
    "--engine.stack 0": (BadValue, "engine.stack"),
    "--engine.device tpu": (BadValue, "engine.device"),
    "--engine.execution fast": (BadValue, "engine.execution"),
    "--engine.memory_format nchw": (BadValue, "engine.memory_format"),
    "--engine Ray --engine.actors 0": (BadValue, "engine.actors"),
    "--engine Ray --engine.actors many": (BadValue, "engine.actors"),
    "--engine Ray --engine.clients_per_actor 0": (BadValue, "engine.clients_per_actor"),
    "--engine Ray --engine.gpus_per_actor 1.5": (BadValue, "engine.gpus_per_actor"),
    "--engine Ray --engine.cpus_per_actor -1": (BadValue, "engine.cpus_per_actor"),
    "--engine Ray --engine.recoveries -1": (BadValue, "engine.recoveries"),
    # protocols
    "--protocol=": (Unknown, "protocol"),
    "--protocol +": (Unknown, "protocol"),
    "--protocol nosuch": (Unknown, "protocol"),
    "--protocol os.system": (BadValue, "protocol"),
    "--protocol rayfl.evaluation.Protocol": (BadValue, "protocol"),
    "--protocol null": (BadValue, "protocol"),
    "--protocol []": (BadValue, "protocol"),
    "--protocol fdse+pooled": (Unknown, "protocol"),
    "--protocol FDSE --protocol.average most": (BadValue, "protocol.average"),
    "--protocol FDSE --protocol.kk 3": (Unknown, "protocol.kk"),
    "--protocol.k 0": (BadValue, "protocol.k"),
    "--protocol.k 3 --protocol FediOS": (Conflict, "protocol.k"),
    "--protocol.patience -1": (BadValue, "protocol.patience"),
    "--protocol.choose window --protocol.length 0": (BadValue, "protocol.length"),
    "--protocol.point nowhere": (BadValue, "protocol.point"),
    # data
    "--data Nosuch": (Unknown, "data"),
    "--data CIFAR10 --data.root nowhere": (Missing, "batches.meta"),
    "--data.shape 3": (BadValue, "data.shape"),
    "--data.shape [3,8]": (BadValue, "data.shape"),
    "--data.shape [0,0,0]": (BadValue, "data.shape"),
    "--data.shape [a,b,c]": (BadValue, "data.shape"),
    "--data.train -1": (BadValue, "data.train"),
    "--data.test 0": (BadValue, "data.test"),
    "--data.train 999999999999": (Shortage, ""),
    "--data.classes 1": (BadValue, "data.classes"),
    "--data.noise nan": (BadValue, "data.noise"),
    "--data.val_fraction 1": (BadValue, "data.val_fraction"),
    "--data.val_fraction nan": (BadValue, "data.val_fraction"),
    "--data.seed x": (BadValue, "data.seed"),
    "--data.test_share 0.2": (Conflict, "data.test_share"),
    "--data.test_from pooled --data.test_share nan": (BadValue, "data.test_share"),
    "--data.test_from all": (BadValue, "data.test_from"),
    "--data.partition PerClientDirichlet": (Conflict, "data.partition.train"),
    "--data.partition Shards --data.partition.per_client 0": (BadValue, "data.partition.per_client"),
    "--data.partition Mixed --data.partition.groups [[-1]]": (BadValue, "data.partition.groups"),
    "--data.partition Mixed --data.partition.groups []": (BadValue, "data.partition.groups"),
    "--data.partition Nosuch": (Unknown, "data.partition"),
    "--data.partition rayfl.data.Synthetic": (BadValue, "data.partition"),
    "--data.partition Dirichlet --data.partition.alpha 0": (BadValue, "data.partition.alpha"),
    "--data.partition Dirichlet --data.partition.alpha inf": (BadValue, "data.partition.alpha"),
    "--data.partition Dirichlet --data.partition.min_samples 999": (BadData, "data.partition"),
    "--data.partition Pathological --data.partition.classes_per_client 0": (
        BadValue,
        "data.partition.classes_per_client",
    ),
    # methods and nets
    "--method Nosuch": (Unknown, "method"),
    "--method FedProx --method.mu nan": (BadValue, "method.mu"),
    "--method FedProx --method.mu [1]": (BadValue, "method.mu"),
    "--method FedProx --method.nu 1": (Unknown, "method.nu"),
    "--method .": (BadValue, "method"),
    "--method nosuch.Method": (Missing, "method"),
    "--net nosuch": (Unknown, "net"),
    "--net .": (Unknown, "net"),
    "--net ..": (Unknown, "net"),
    "--net a.": (Unknown, "net"),
    "--net .a": (Unknown, "net"),
    "--net a..b": (Unknown, "net"),
    "--net=": (Unknown, "net"),
    "--net []": (BadValue, "net"),
    "--net [[LeNet]]": (BadValue, "net"),
    "--net [1,2]": (BadValue, "net"),
    "--net null": (Unknown, "net"),
    "--net LeNet(": (Unknown, "net"),
    "--net LeNet --net.x 1": (Unknown, "net.x"),
    "--net FDSEAlexNet --net.G x": (BadValue, "net.G"),
    "--net FDSEAlexNet --net.G 1": (BadValue, "net.G"),
    "--net FDSE-AlexNet(G=4)": (Unknown, "net"),
    "--net.number 3": (Unknown, "net.number"),
    "--net Architecture": (Unknown, "net"),
    "--net rayfl.methods.FedAvg": (BadCode, "net"),
    "--net nosuch.module": (Missing, "net"),
    "--net rayfl.nosuch": (Unknown, "net"),
    "--net Module": (Missing, "net.path"),
    "--net Module --net.path nosuch": (Unknown, "net"),
    "--net Module --net.path nosuch.module": (Missing, "net"),
    "--net Module --net.path rayfl.methods.FedAvg": (BadCode, "net"),
    "--net Module --net.path torch.nn.Linear": (BadValue, "net"),
    "--net Module --net.path torchvision.models.resnet18 --net.arguments 3": (BadValue, "net.arguments"),
    "--net Module --net.path torchvision.models.resnet18 --net.head conv1": (Unknown, "net.head"),
    '--net Module --net.path torchvision.models.resnet18 --net.arguments {"weights":"DEFAULT"}': (
        (BadValue, "net.arguments.weights")
    ),
    "--net torchvision.models.squeezenet1_0": (Unknown, "net.head"),
    "--net TokenMLP": (Conflict, "net"),
    "--net CharLSTM --net.layers 0": (BadValue, "net.layers"),
    "--net MLP --net.hidden [0]": (BadValue, "net.hidden"),
    "--net MLP --net.hidden x": (BadValue, "net.hidden"),
    # what would run something
    "--net Module --net.path os.system": (BadValue, "net"),
    '--net Module --net.path own.plain --net.arguments {"command":"ls"}': (Missing, "net"),
    "--net os.system": (BadValue, "net"),
    "--net shutil.rmtree": (BadValue, "net"),
    "--net subprocess.Popen": (BadValue, "net"),
    "--net antigravity.fly": (BadValue, "net"),
    "--net rayfl.system.files.os.system": (Missing, "net"),
    "--method os.system": (BadValue, "method"),
    "--method subprocess.Popen": (BadValue, "method"),
    "--data webbrowser.open": (BadValue, "data"),
    # places
    "--output file": (InUse, "file"),
    "--output file/x": (BadValue, "file/x"),
    "--output fifo": (InUse, "fifo"),
    "--output /dev/null/x": (BadValue, "/dev/null/x"),
    "--output full": (InUse, "full"),
    "--output": (Missing, "output"),
    "--output=": (BadValue, "output"),
    "--data CIFAR10 --data.root \udcff": (BadValue, "data.root"),
    "--output \udcff\udcfe": (BadValue, "output"),
    "--net \udcff": (BadValue, "net"),
}

# a whole command line -> what is wrong, and where
COMMANDS: dict[str, tuple[type[UserError], str]] = {
    "run --resume": (Missing, "resume"),
    "run --resume nowhere": (Missing, "nowhere"),
    "run --resume file": (Missing, "file"),
    "run --resume fifo": (Missing, "fifo"),
    "run --resume /dev/zero": (Missing, "/dev/zero"),
    "run --resume full": (Missing, "full"),
    "run --resume nowhere --seed 3": (Conflict, "resume"),
    "run --resume nowhere --rounds x": (Missing, "nowhere"),
    "run --method.help Nosuch": (Unknown, "method"),
    "run --data.help Nosuch": (Unknown, "data"),
    "run --nosuch.help x": (Unknown, "nosuch.help"),
    "table fedco2/t3 --lr 0.1": (Unknown, "lr"),
    "tune embedded --lr 0.1": (Unknown, "lr"),
    "tune embedded --method.mu 3": (Conflict, "method.mu"),
    "report": (Missing, "RUN"),
    "report nowhere": (Missing, "nowhere"),
    "report file": (Missing, "file"),
    "report fifo": (Missing, "fifo"),
    "report /dev/zero": (Missing, "/dev/zero"),
    "report \udcff": (BadValue, "runs"),
    "report nowhere --foo": (Unknown, "foo"),
    "report nowhere --view": (Missing, "view"),
    "report nowhere --against fedco2": (Missing, "against"),
    "report nowhere --against ../.. x": (Unknown, "against"),
    "report nowhere --against fedco2 t99": (Unknown, "against"),
    "report run --view nosuch": (Unknown, "view"),
    "report run --by nosuch": (Unknown, "by"),
    "figure": (Missing, "KIND"),
    "figure nosuch": (Unknown, "kind"),
    "figure rounds": (Missing, "RUN"),
    "figure rounds run": (Missing, "save"),
    "figure rounds run --save picture": (BadValue, "save"),
    "figure rounds run --save picture.xyz": (BadValue, "save"),
    "figure rounds run --save .png": (BadValue, "save"),
    "figure rounds run --save .": (BadValue, "save"),
    "figure clients run --save picture.pgf": (BadValue, "save"),
    "figure bars run --save PICTURE.EPS": (BadValue, "save"),
    "figure rounds run --save file/x.png": (Shortage, "file/x.png"),
    "figure rounds nowhere --save x.png": (Missing, "nowhere"),
    "figure rounds fifo --save x.png": (Missing, "fifo"),
    "figure rounds run --save x.png --target x": (BadValue, "target"),
    "figure rounds run --save x.png --quantity speed": (Unknown, "quantity"),
    "figure rounds run --save x.png --panels nosuch": (Unknown, "panels"),
    "figure bars run --save x.png --views nosuch": (Unknown, "view"),
    "figure sweep run --save x.png": (Missing, "over"),
    "figure sweep run --save x.png --over nosuch": (Unknown, "over"),
    "figure labels run --save x.png --by clients": (Unknown, "by"),
}

NUL: list[tuple[list[str], type[UserError], str]] = [
    (["run", "--resume", "a\0b"], Missing, "a\0b"),
    ([*TINY.split(), "--output", "a\0b"], BadValue, "output"),
    ([*TINY.split(), "--data", "CIFAR10", "--data.root", "a\0b"], BadValue, "data.root"),
    (["table", "a\0b"], Missing, "a\0b"),
    (["tune", "a\0b"], Missing, "a\0b"),
    (["tune", "--resume", "a\0b"], Missing, "a\0b"),
    (["report", "a\0b"], Missing, "a\0b"),
    (["figure", "rounds", "a\0b", "--save", "x.png"], Missing, "a\0b"),
    (["figure", "rounds", "run", "--save", "a\0b.png"], Missing, "run"),
]

OWN = """\
import os
from rayfl.data import IID, Synthetic
from rayfl.methods import FedAvg
from rayfl.nets.convolutional import LeNet

def raises(shape, classes):
    raise RuntimeError("no such \\x1b[2J luck\\nsecond line")
def key(shape, classes):
    return {}["x"]
def kind(shape, classes):
    return 1 + "a"
def value(shape, classes):
    raise ValueError("bad")
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
number = 3

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
class Typed(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.factor = 1 + factor
class Forgets(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        pass
"""

# options -> what is wrong with code of the user's own that raises; its traceback follows
RAISING: dict[str, tuple[type[UserError], str]] = {
    "--net own.raises": (BadCode, "net"),
    "--net own.key": (BadCode, "net"),
    "--net own.kind": (BadCode, "net"),
    "--net own.value": (BadCode, "net"),
    "--net own.leaves": (BadCode, "leaves"),
    "--net own.forward": (BadCode, "net"),
    "--net [LeNet,own.raises] --method Local": (BadCode, "net"),
    "--net broken.net": (
        BadCode,
        "broken.py:1",
    ),
    "--net bad.net": (BadCode, "<module>"),
    "--net needs.net": (Missing, "net"),
    "--data own.Load": (BadCode, "Load.load"),
    "--data own.Missing": (BadCode, "Missing.load"),
    "--data own.Made": (BadCode, "Made.__init__"),
    "--data.partition own.Divided": (BadCode, "Divided.assign"),
    "--method own.Bound": (BadCode, "Bound.prepare"),
    "--method broken.Method": (
        BadCode,
        "broken.py:1",
    ),
    "--method bad.Method": (BadCode, "<module>"),
}

# options -> what is wrong with code of the user's own that does not fit
UNFIT: dict[str, tuple[type[UserError], str]] = {
    "--net own.nothing": (BadCode, "net"),
    "--net own.takes_none": (BadCode, "net"),
    "--net own.two": (BadCode, "net"),
    "--net own.number": (BadCode, "net"),
    "--net own.nosuch": (Unknown, "net"),
    "--net own.os": (BadValue, "net"),
    "--net own.nothing(x=1)": (Unknown, "net"),
    "--method own.Typed --method.factor x": (BadValue, "method.factor"),
    "--method own.Forgets": (BadCode, "Forgets"),
    "--method own.Nosuch": (BadValue, "method"),
    "--method own.Load": (BadValue, "method"),
    "--data own.Bound": (BadValue, "data"),
}

FILES = {
    "own.py": OWN,
    "broken.py": "def net(:\n",
    "bad.py": 'raise ValueError("at import")\n',
    "needs.py": "import nosuchmodule\n",
}

PLACES = {"file": "", "full/file": ""}

CASES = [
    *(
        Case(
            line if len(line) < 100 else f"{line[:40]}...",
            [*TINY.split(), *line.split()],
            kind,
            place,
            files=PLACES,
            prepare=lambda folder: os.mkfifo(folder / "fifo"),
        )
        for line, (kind, place) in LINES.items()
    ),
    *(
        Case(
            line,
            line,
            kind,
            place,
            files=PLACES,
            prepare=lambda folder: (os.mkfifo(folder / "fifo"), put_run(folder)),
        )
        for line, (kind, place) in COMMANDS.items()
    ),
    *(Case(f"NUL: {words}", words, kind, place) for words, kind, place in NUL),
    *(
        Case(f"own: {line}", f"{TINY} {line}", kind, place, files=FILES, traceback=True)
        for line, (kind, place) in RAISING.items()
    ),
    *(
        Case(f"own: {line}", f"{TINY} {line}", kind, place, files=FILES)
        for line, (kind, place) in UNFIT.items()
    ),
    Case(
        "a value without end",
        ["run", "--net", "&a [*a]"],
        Unknown,
        "net",
    ),
    Case(
        "a value 500 deep",
        ["run", f"--net={'[' * 500}{']' * 500}"],
        BadValue,
        "net",
    ),
    Case(
        "a value of 2 MB",
        ["run", "--net", "x" * 2_000_000],
        Unknown,
        "net",
    ),
    Case("a value with a command", [*TINY.split(), "--net", f"$(touch {CANARY})"], Unknown, "net"),
    Case(
        "a value with a tag",
        ["run", "--training", f"!!python/object/apply:os.system ['touch {CANARY}']"],
        BadValue,
        "training",
    ),
    Case("control characters", [*TINY.split(), "--net", "\x1b[2J\x07\nnet"], Unknown, "net"),
]
