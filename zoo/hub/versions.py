"""Which weights each version of a bundled model is: `NAME@v1` always loads the same bytes, or nothing.

`zoo.load(NAME)` follows the newest version; `NAME@v1` does not move when new weights are bundled.
"""

VERSIONS: dict[str, tuple[str, ...]] = {  # sha256 of model.safetensors, v1 first; append, never replace
    "mocov2-r20-cifar100": ("0962bed44c730a12afeda3d3beb9bae6c6d944d0f9fc54c04035afdc8b6c023b",),
    "mocov2plus-r20-cifar100": ("57cb5b4bc40a116fc964c31fadab87a63fc21e3953f40265d4e7a8c84c88d00b",),
    "simclr-r20-cifar100": ("63100852f2d13157f6a5b8cf65e71e267827aaa6b73497fdbb5b109ac3632f52",),
    "simco-r18-cifar100-cpu": ("e887466632b851c3fbab19a680af565d089017e9befffbfb4b5583db8bff012f",),
    "simco-r20-cifar100": ("b2217207fb99be5454a24cfc8da9cc4212bda74b4ba212cabec0ec0ca641f16b",),
    "simmoco-r20-cifar100": ("a208dc08cf5256b8e815f95afcbf46078465211058b85ef0abbe140f5d4efa29",),
    "simmocoplus-r20-cifar100": ("d1f196dc20b346d9aaac8df81afc735044da84367805bbf5eb023c36999c374f",),
}
