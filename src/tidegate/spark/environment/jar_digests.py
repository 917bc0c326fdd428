"""The pinned jars of Spark's Kafka connector: versions, and the SHA-256 digest of every jar."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tidegate.errors import SetupError

CONNECTORS = ("4.1.0", "4.1.1", "4.1.2", "4.2.0")
"""The versions of the connector whose jars are pinned, the oldest first."""
TOKENS = "4.1.0-preview1"
"""The version of the library of tokens, which all of them use; registries lack others."""
_DIGESTS = """
5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef commons-pool2-2.12.1.jar
f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f commons-pool2-2.13.1.jar
7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9 kafka-clients-3.9.1.jar
014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8 kafka-clients-3.9.2.jar
d74a3334fb35195009b338a951f918203d6bbca3d1d359033dc33edd1cadc9ef lz4-java-1.8.0.jar
535c5578cab5dcd0a438e202df80091632b873c0370c25d9b1c1ad1d73577207 lz4-java-1.11.0.jar
50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc snappy-java-1.1.10.8.jar
a335b885043bbe0d553ab70738418a45eb4cda94a28718e4b62a347046c03723 spark-sql-kafka-0-10_2.13-4.1.0.jar
9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c spark-sql-kafka-0-10_2.13-4.1.1.jar
1dce8c690aea67bba8942eaa0280aa5dbc16e0c7c64bd0b1777b919b36d7ab2e spark-sql-kafka-0-10_2.13-4.1.2.jar
64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705 spark-sql-kafka-0-10_2.13-4.2.0.jar
cc9bc30e8dded8bb50103235d26911406b37253bbd79f506ed019845c628155c spark-tags_2.13-4.1.0.jar
211119305f223e63fa0358843e799576e6de397d83f60c47d1f1ea1d6486c4ea spark-tags_2.13-4.1.1.jar
9d6488817e15c0d339ee5019808357043d0821eeffddebe1569b978102c09a41 spark-tags_2.13-4.1.2.jar
496b66fcd75a892fce1f3c776729a006cdd3e5ce610a7d257735610b8bdc5339 spark-tags_2.13-4.2.0.jar
ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b spark-token-provider-kafka-0-10_2.13-4.1.0-preview1.jar
"""  # noqa: E501 - a table
DIGESTS = {name: digest for digest, name in (line.split() for line in _DIGESTS.split("\n") if line)}


def connector_for(spark: str) -> str | None:
    """The newest pinned connector that is not newer than a version of Spark."""
    fitting = [one for one in CONNECTORS if _numbers(one) <= _numbers(spark)]
    return fitting[-1] if fitting else None


def verify(jars: Iterable[Path]) -> None:
    """`SetupError` if a jar is not pinned, or is not the pinned one."""
    for jar in jars:
        wanted = DIGESTS.get(jar.name)
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != wanted:
            raise SetupError(
                f"the jar `{jar}` has the SHA-256 digest {found}, and"
                f" {'none' if wanted is None else wanted} is pinned for it. Hint: delete the"
                f" folder {jar.parent} to download it again; if that does not help, the registry"
                " serves another file: set `spark.jars` to jars of your own"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, without a suffix such as `.dev1`."""
    parts = version.split(".")[:3]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)
