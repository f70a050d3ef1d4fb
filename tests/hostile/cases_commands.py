"""Command lines: options and values of ``rayfl.run``, reports and pictures, and code of the user's own."""

import os

from tests.hostile.harness import CANARY, Case, put_run

TINY = (
    "run --engine Inline --data Synthetic --data.train 200 --data.test 60 --net LeNet --rounds 1 --output out"
)

# options behind those of a tiny run -> what is said
LINES: dict[str, tuple[str, ...] | str] = {
    "--rouns 3": "there is no option --rouns; did you mean --rounds?",
    "--training.epoch 3": "did you mean --training.epochs?",
    "---rounds 3": "there is no option ---rounds; did you mean --rounds?",
    "--=3": "there is no option --=3",
    "-x": "there is no option -x",
    "positional": "'positional' belongs to no option",
    "--rounds 3 4": "'4' belongs to no option",
    "--rounds": "--rounds has no value: write --rounds",
    "--rounds=": "rounds",
    "--rounds=3=4": "rounds is 3=4: it must be a whole number",
    "--rounds 0": "rounds is 0: it must be at least 1",
    "--rounds -1": "rounds is -1: it must be at least 1",
    "--rounds 1e3": "rounds is 1000.0: it must be a whole number",
    "--rounds 99999999999999999999": "rounds is 99999999999999999999: it must be a whole number",
    f"--rounds {'9' * 5000}": "rounds",
    "--clients 0": "clients is 0: it must be at least 1",
    "--clients 99999999999999999999": "clients is 99999999999999999999: it must be a whole number",
    "--clients 999999999999": "clients is 999999999999",
    "--participation 0": "participation is 0.0: it must be above 0",
    "--participation 1.01": "participation is 1.01: it must be above 0 and at most 1",
    "--participation nan": "participation is nan: it must be a number",
    "--participation inf": "participation is inf: it must be a number",
    "--seed 1e400": "seed is inf: it must be a whole number",
    "--seed 99999999999999999999": "seed is 99999999999999999999: it must be a whole number",
    "--seed null": "seed",
    "--averaging median": "averaging is median: it must be 'samples' or 'uniform'",
    "--eval_every -1": "eval_every is -1: it must be at least 0",
    "--checkpoint_every -1": "checkpoint_every is -1: it must be at least 0",
    "--checkpoint_every 0.5": "checkpoint_every is 0.5: it must be a whole number",
    "--on_bad_update ignore": "on_bad_update is ignore: it must be 'stop' or 'drop'",
    "--loggers perhaps": "loggers is perhaps: it must be a list in brackets, of which each is 'tensorboard'",
    "--loggers [csv,csv]": "loggers has csv twice",
    "--quiet": "--quiet has no value: write --quiet true",
    "--unseen nowhere": "unseen is 'nowhere': the data have no such domain",
    "--cell 3": "cell is '3': it must be a mapping",
    "--row A": "--row and --column choose a cell of a table",
    # training
    "--training 3": "training",
    "--training nowhere.yaml": "training is 'nowhere.yaml': give a YAML file that is there",
    "--training.lr 0": "training.lr is 0.0: it must be above 0",
    "--training.lr true": "training.lr is True: it must be a number",
    "--training.lr 1e400": "training.lr is inf: it must be finite and above 0",
    "--training.lr [1]": "training.lr is [1]: it must be a number",
    "--training.batch_size 0": "training.batch_size is 0: it must be at least 1",
    "--training.batch_size 99999999999999999999": "training.batch_size is 99999999999999999999",
    "--training.epochs 0": "training.epochs is 0: it must be at least 1",
    "--training.schedule Linear": "there is no training.schedule 'Linear'",
    "--training.schedule Exponential": "training.schedule Exponential needs --training.schedule.decay",
    "--training.schedule Exponential --training.schedule.decay 2": "training.schedule.decay is 2.0: it must ",
    "--training.schedule Steps --training.schedule.at_rounds [3,2]": "training.schedule.at_rounds is [3, 2]",
    "--training.schedule Cosine --training.schedule.warmup -1": "training.schedule.warmup is -1: it must",
    "--training.schedule Cosine --training.schedule.decay 1": "training.schedule Cosine has no option",
    "--training.optimiser Adamm": "there is no training.optimiser 'Adamm'; did you mean Adam",
    "--training.optimiser Adam --training.optimiser.beta1 1": "training.optimiser.beta1 is 1.0: it must",
    "--training.optimiser Adam --training.optimiser.eps 0": "training.optimiser.eps is 0.0: it must be",
    "--training.optimiser Adam --training.momentum 0.9": "training.momentum is 0.9, and Adam has no momentum",
    "--training.optimiser SGD --training.optimiser.nesterov true": "it needs --training.momentum",
    "--training.optimiser.beta1 0.5": "training.optimiser SGD has no option 'beta1'",
    "--method SCAFFOLD --training.optimiser AdamW": "SCAFFOLD works with SGD alone",
    "--training.momentum 1": "training.momentum is 1.0: it must be at least 0 and below 1",
    "--training.weight_decay -1": "training.weight_decay is -1.0: it must be at least 0",
    "--training.clip -1": "training.clip is -1.0: it must be at least 0",
    "--training.precision float16": "training.precision is float16",
    "--training.last_batch lose": "training.last_batch is lose",
    # engine
    "--engine Nosuch": "there is no engine 'Nosuch'",
    "--engine rayfl.engine.Engine": "is abstract; give --engine NAME",
    "--engine rayfl.methods.FedAvg": "engine: Import path rayfl.methods.FedAvg does not correspond",
    "--engine.actors 2": "engine Inline has no option 'actors'",
    "--engine.threads 0": "engine.threads is 0",
    "--engine.threads 1.5": "engine.threads is 1.5: it must be a whole number",
    "--engine.stack 0": "engine.stack is 0: it must be at least 1",
    "--engine.device tpu": "engine.device is tpu: it must be 'auto' or 'cpu' or 'cuda'",
    "--engine.execution fast": "engine.execution is fast",
    "--engine.memory_format nchw": "engine.memory_format is nchw",
    "--engine Ray --engine.actors 0": "engine.actors is 0: it must be at least 1",
    "--engine Ray --engine.actors many": "engine.actors is many: it must be a whole number or 'auto'",
    "--engine Ray --engine.clients_per_actor 0": "engine.clients_per_actor is 0",
    "--engine Ray --engine.gpus_per_actor 1.5": "engine.gpus_per_actor is 1.5",
    "--engine Ray --engine.cpus_per_actor -1": "engine.cpus_per_actor is -1.0",
    "--engine Ray --engine.recoveries -1": "engine.recoveries is -1",
    # protocols
    "--protocol=": "there is no protocol ''",
    "--protocol +": "there is no protocol '+'",
    "--protocol nosuch": "there is no protocol 'nosuch'",
    "--protocol os.system": "protocol is 'os.system', which no configuration may name",
    "--protocol rayfl.evaluation.Protocol": "protocol is a Protocol: it must be one of",
    "--protocol null": "protocol is null",
    "--protocol []": "protocol is []: it must be a name",
    "--protocol fdse+pooled": "there is no protocol 'fdse+pooled'",
    "--protocol FDSE --protocol.average most": "protocol.average is most: it must be",
    "--protocol FDSE --protocol.kk 3": "protocol FDSE has no option 'kk'",
    "--protocol.k 0": "protocol.k is 0: it must be at least 1",
    "--protocol.k 3 --protocol FediOS": "--protocol.k stands before --protocol FediOS",
    "--protocol.patience -1": "protocol.patience is -1: it must be at least 0",
    "--protocol.choose window --protocol.length 0": "protocol.length is 0: it must be at least 1",
    "--protocol.point nowhere": "protocol.point is nowhere: it must be",
    # data
    "--data Nosuch": "there is no data 'Nosuch'",
    "--data CIFAR10 --data.root nowhere": "CIFAR10",
    "--data.shape 3": "data.shape",
    "--data.shape [3,8]": "data.shape is [3, 8]: it must be a tuple of",
    "--data.shape [0,0,0]": "data.shape is (0, 0, 0): its numbers must be at least 1",
    "--data.shape [a,b,c]": "data.shape is a: it must be a tuple of (a whole number",
    "--data.train -1": "data.train is -1: it must be at least 1",
    "--data.test 0": "data.test is 0: it must be at least 1",
    "--data.train 999999999999": "GB of memory",
    "--data.classes 1": "data.classes is 1: it must be at least 2",
    "--data.noise nan": "data.noise is nan",
    "--data.val_fraction 1": "data.val_fraction is 1.0: it must be at least 0 and below 1",
    "--data.val_fraction nan": "data.val_fraction is nan",
    "--data.seed x": "data.seed is x: it must be a whole number",
    "--data.partition Nosuch": "there is no data.partition 'Nosuch'",
    "--data.partition rayfl.data.Synthetic": "data.partition: Import path",
    "--data.partition Dirichlet --data.partition.alpha 0": "data.partition.alpha is 0.0: it must be above 0",
    "--data.partition Dirichlet --data.partition.alpha inf": "data.partition.alpha is inf",
    "--data.partition Dirichlet --data.partition.min_samples 999": "needs at least 4995 training samples",
    "--data.partition Pathological --data.partition.classes_per_client 0": "it must be at least 1",
    # methods and nets
    "--method Nosuch": "there is no method 'Nosuch'",
    "--method FedProx --method.mu nan": "method.mu is nan",
    "--method FedProx --method.mu [1]": "method.mu is [1]: it must be a number",
    "--method FedProx --method.nu 1": "method FedProx has no option 'nu'",
    "--method .": "method",
    "--method nosuch.Method": "method",
    "--net nosuch": "there is no net 'nosuch'",
    "--net .": "net",
    "--net ..": "net",
    "--net a.": "net",
    "--net .a": "net",
    "--net a..b": "net",
    "--net=": "there is no net ''",
    "--net []": "net is []: it must be a net, or a list of at least one",
    "--net [[LeNet]]": "there is no net '[[LeNet]]'",
    "--net [1,2]": "there is no net '[1,2]'",
    "--net null": "there is no net 'null'",
    "--net LeNet(": "there is no net 'LeNet('",
    "--net LeNet --net.x 1": "net LeNet has no option 'x'",
    "--net FDSEAlexNet --net.G x": "net.G is x: it must be a whole number",
    "--net FDSEAlexNet --net.G 1": "net.G is 1: it must be at least 2",
    "--net FDSE-AlexNet(G=4)": "there is no net 'FDSE-AlexNet(G=4)'",
    "--net.number 3": "net LeNet has no option 'number'",
    "--net Architecture": "there is no net 'Architecture'",
    "--net rayfl.methods.FedAvg": "it returns a FedAvg, not a torch.nn.Module",
    "--net nosuch.module": "cannot import 'nosuch'",
    "--net rayfl.nosuch": "has no 'nosuch'",
    "--net Module": "net Module needs --net.path",
    "--net Module --net.path nosuch": "there is no net 'nosuch'",
    "--net Module --net.path nosuch.module": "cannot import 'nosuch'",
    "--net Module --net.path rayfl.methods.FedAvg": "it returns a FedAvg, not a torch.nn.Module",
    "--net Module --net.path torch.nn.Linear": "calling Linear() failed",
    '--net Module --net.path torch.nn.Linear --net.arguments {"in_features":-1}': "Linear",
    "--net Module --net.path torchvision.models.resnet18 --net.arguments 3": "net.arguments",
    "--net Module --net.path torchvision.models.resnet18 --net.head conv1": "net.head is 'conv1'",
    '--net Module --net.path torchvision.models.resnet18 --net.arguments {"weights":"DEFAULT"}': (
        "these weights would be fetched from a network"
    ),
    "--net torchvision.models.squeezenet1_0": "it calls no nn.Linear",
    "--net TokenMLP": "takes token ids",
    "--net CharLSTM --net.layers 0": "net.layers is 0: it must be at least 1",
    "--net MLP --net.hidden [0]": "net.hidden is (0,): its numbers must be at least 1",
    "--net MLP --net.hidden x": "net.hidden",
    # what would run something
    "--net Module --net.path os.system": "net is 'os.system', which no configuration may name",
    '--net Module --net.path own.plain --net.arguments {"command":"ls"}': "net",
    "--net os.system": "net is 'os.system', which no configuration may name",
    "--net shutil.rmtree": "net is 'shutil.rmtree', which no configuration may name",
    "--net subprocess.Popen": "net is 'subprocess.Popen', which no configuration may name",
    "--net antigravity.fly": "net is 'antigravity.fly', which no configuration may name",
    "--net rayfl.files.os.system": "net",
    "--method os.system": "method is 'os.system', which no configuration may name",
    "--method subprocess.Popen": "method is 'subprocess.Popen', which no configuration may name",
    "--data webbrowser.open": "data",
    # places
    "--output file": "file already exists and is a file",
    "--output file/x": "file/x cannot be made",
    "--output fifo": "fifo cannot be made",
    "--output /dev/null/x": "/dev/null/x cannot be made",
    "--output full": "full already exists and holds files",
    "--output": "--output has no value: write --output",
    "--output=": "output is empty: give a folder, or leave it out",
    "--data.root \udcff": "--data.root: '\\udcff' is not valid UTF-8",
    "--output \udcff\udcfe": "--output: '\\udcff\\udcfe' is not valid UTF-8",
    "--net \udcff": "--net: '\\udcff' is not valid UTF-8",
}

# a whole command line -> what is said
COMMANDS: dict[str, tuple[str, ...] | str] = {
    "run --resume": "--resume has no value: write --resume RUN_FOLDER",
    "run --resume nowhere": "nowhere is not a run folder",
    "run --resume file": "file is not a run folder",
    "run --resume fifo": "fifo is not a run folder",
    "run --resume /dev/zero": "/dev/zero is not a run folder",
    "run --resume full": "full is not a run folder",
    "run --resume nowhere --seed 3": "remove --seed",
    "run --resume nowhere --rounds x": "rounds is x: it must be a whole number",
    "run --method.help Nosuch": "there is no method 'Nosuch'",
    "run --data.help Nosuch": "there is no data 'Nosuch'",
    "run --nosuch.help x": "there is no option --nosuch.help",
    "table fedco2/t3 --lr 0.1": "there is no option --lr; did you mean --training.lr?",
    "tune embedded --lr 0.1": "there is no option --lr; did you mean --training.lr?",
    "tune embedded --method.mu 3": "--method.mu has no effect, because the tune space searches method.mu",
    "report": "RUN must be given",
    "report nowhere": "nowhere is not a run folder",
    "report file": "file is not a run folder",
    "report fifo": "fifo is not a run folder",
    "report /dev/zero": "/dev/zero is not a run folder",
    "report \udcff": "is not a run folder",
    "report nowhere --foo": "there is no option --foo",
    "report nowhere --view": "--view has no value: write --view",
    "report nowhere --against fedco2": "--against needs more values: write --against PAPER TABLE",
    "report nowhere --against ../.. x": "--against ../..: there is no such paper",
    "report nowhere --against fedco2 t99": "--against fedco2 t99: fedco2 has t1",
    "report run --view nosuch": "view nosuch: no run has recorded it; there are ",
    "report run --by nosuch": "by nosuch: no run has this key",
    "figure": "kind",
    "figure nosuch": "there is no kind 'nosuch'. Choose one of rounds, sweep",
    "figure rounds": "RUN and --save must be given",
    "figure rounds run": "--save must be given",
    "figure rounds run --save picture": "--save picture: its name must end in .png, .pdf or .svg",
    "figure rounds run --save picture.xyz": "--save picture.xyz: its name must end in .png, .pdf or .svg",
    "figure rounds run --save .png": "--save .png: its name must end in .png, .pdf or .svg",
    "figure rounds run --save .": "--save .: its name must end in .png, .pdf or .svg",
    "figure clients run --save picture.pgf": "--save picture.pgf: its name must end in",
    "figure bars run --save PICTURE.EPS": "--save PICTURE.EPS: its name must end in",
    "figure rounds run --save file/x.png": "file/x.png cannot be written",
    "figure rounds nowhere --save x.png": "nowhere is not a run folder",
    "figure rounds fifo --save x.png": "fifo is not a run folder",
    "figure rounds run --save x.png --target x": "target is x: it must be a number",
    "figure rounds run --save x.png --quantity speed": "quantity speed: no run has recorded it",
    "figure rounds run --save x.png --panels nosuch": "nosuch",
    "figure bars run --save x.png --views nosuch": "view nosuch: no run has recorded it",
    "figure sweep run --save x.png": "--over must be given",
    "figure sweep run --save x.png --over nosuch": "run has no key nosuch",
    "figure labels run --save x.png --by clients": "there is no option --by",
}

NUL = [
    (["run", "--resume", "a\0b"], "a\\x00b is not a run folder"),
    ([*TINY.split(), "--output", "a\0b"], "output is 'a\\x00b': it must be text in UTF-8 without"),
    ([*TINY.split(), "--data", "CIFAR10", "--data.root", "a\0b"], "data.root is 'a\\x00b': it must be text"),
    (["table", "a\0b"], "a\\x00b cannot be read"),
    (["tune", "a\0b"], "a\\x00b cannot be read"),
    (["tune", "--resume", "a\0b"], "a\\x00b is not a sweep folder"),
    (["report", "a\0b"], "a\\x00b is not a run folder"),
    (["figure", "rounds", "a\0b", "--save", "x.png"], "a\\x00b is not a run folder"),
    (["figure", "rounds", "run", "--save", "a\0b.png"], "run is not a run folder"),
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
class Nothing(Synthetic):
    def load(self):
        return None
class Made(Synthetic):
    def __init__(self, x: int = 1):
        raise RuntimeError("bad start")
class Divided(IID):
    def assign(self, dataset, clients, rng):
        return {}[3]
class Bound(FedAvg):
    def setup(self, net, population, seed):
        raise RuntimeError("bad setup")
class Typed(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.factor = 1 + factor
class Forgets(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        pass
"""

# options -> what is said of code of the user's own that raises; its traceback follows
RAISING: dict[str, tuple[str, ...]] = {
    "--net own.raises": ("raises (", "own.py:7", "RuntimeError: no such \\x1b[2J luck second line"),
    "--net own.key": ("key (", "own.py:9", "KeyError: 'x'"),
    "--net own.kind": ("own.kind", "unsupported operand"),
    "--net own.value": ("value (", "own.py:13", "ValueError: bad"),
    "--net own.leaves": ("leaves (", "own.py:15", "SystemExit: 3"),
    "--net own.forward": ("net own.forward cannot be trained", "KeyError: 'x'"),
    "--net [LeNet,own.raises] --method Local": ("raises (", "own.py:7"),
    "--net broken.net": ("broken.py:1", "SyntaxError"),
    "--net bad.net": ("bad.py:1", "ValueError: at import"),
    "--net needs.net": ("needs.net", "nosuchmodule"),
    "--data own.Load": ("Load.load (", "own.py:30", "RuntimeError: bad load"),
    "--data own.Missing": ("Missing.load (", "own.py:33", "nowhere.bin"),
    "--data own.Made": ("Made.__init__ (", "own.py:39", "RuntimeError: bad start"),
    "--data.partition own.Divided": ("Divided.assign (", "own.py:42", "KeyError: 3"),
    "--method own.Bound": ("Bound.setup (", "own.py:45", "RuntimeError: bad setup"),
    "--method broken.Method": ("broken.py:1", "SyntaxError"),
    "--method bad.Method": ("bad.py:1", "ValueError: at import"),
}

# options -> what is said of code of the user's own that does not fit
UNFIT: dict[str, tuple[str, ...] | str] = {
    "--net own.nothing": "net own.nothing: it returns a NoneType",
    "--net own.takes_none": "net own.takes_none: calling takes_none(shape, classes) failed",
    "--net own.two": "net own.two: for 2 inputs it returns (2, 11), not 2 x 10 scores",
    "--net own.number": "net",
    "--net own.nosuch": "has no 'nosuch'",
    "--net own.os": "net",
    "--net own.nothing(x=1)": "there is no net 'own.nothing(x=1)'",
    "--data own.Nothing": "Nothing.load returns None: it must return a rayfl.data.Dataset",
    "--method own.Typed --method.factor x": "method.factor is x: it must be a number",
    "--method own.Forgets": "Forgets does not keep its argument 'factor'",
    "--method own.Nosuch": "method",
    "--method own.Load": "method: Import path own.Load does not correspond to a subclass of Method",
    "--data own.Bound": "data: Import path own.Bound does not correspond to a subclass of Data",
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
            says=says,
            files=PLACES,
            prepare=lambda folder: os.mkfifo(folder / "fifo"),
        )
        for line, says in LINES.items()
    ),
    *(
        Case(
            line,
            line,
            says=says,
            files=PLACES,
            prepare=lambda folder: (os.mkfifo(folder / "fifo"), put_run(folder)),
        )
        for line, says in COMMANDS.items()
    ),
    *(Case(f"NUL: {words}", words, says=says) for words, says in NUL),
    *(
        Case(f"own: {line}", f"{TINY} {line}", says=says, files=FILES, traceback=True)
        for line, says in RAISING.items()
    ),
    *(Case(f"own: {line}", f"{TINY} {line}", says=says, files=FILES) for line, says in UNFIT.items()),
    Case(
        "a value without end",
        ["run", "--net", "&a [*a]"],
        says="--net: its value cannot be used: *a stands within what it names",
    ),
    Case(
        "a value 500 deep",
        ["run", f"--net={'[' * 500}{']' * 500}"],
        says="--net: its value cannot be used: lists and mappings are nested more than 50 deep",
    ),
    Case(
        "a value of 2 MB",
        ["run", "--net", "x" * 2_000_000],
        says="--net: its value cannot be used: it has more",
    ),
    Case(
        "a value with a command", [*TINY.split(), "--net", f"$(touch {CANARY})"], says="net '$(touch CANARY)'"
    ),
    Case(
        "a value with a tag",
        ["run", "--training", f"!!python/object/apply:os.system ['touch {CANARY}']"],
        says="training",
    ),
    Case(
        "control characters", [*TINY.split(), "--net", "\x1b[2J\x07\nnet"], says="there is no net '\\x1b[2J"
    ),
]
