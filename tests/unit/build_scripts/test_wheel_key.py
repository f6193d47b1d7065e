"""Where a compiled wheel may be used again."""

from __future__ import annotations

from build_scripts._lib.wheel_key import instruction_sets, wheel_key

X86 = "processor : 0\nflags\t\t: fpu sse4_2 avx2 fma ibrs_enhanced md_clear\nbugs\t: spectre_v1\n"
ARM = "processor : 0\nFeatures\t: fp asimd aes crc32 sve cpuid\n"


def key(*, version: str = "1.0", cpuinfo: str = X86, **environ: str) -> str:
    return wheel_key("engine", version, cpuinfo=cpuinfo, environ=environ)


def test_only_instruction_sets_count() -> None:
    assert instruction_sets(X86) == ["avx2", "fma", "sse4_2"]
    assert instruction_sets(ARM) == ["aes", "asimd", "crc32", "fp", "sve"]
    assert instruction_sets("") == []
    assert key() == key(cpuinfo=X86.replace(" md_clear", "")), "a kernel's flag is no reason to compile again"


def test_what_makes_another_wheel_makes_another_key() -> None:
    keys = {
        key(),
        key(version="1.1"),
        key(cpuinfo=X86.replace("avx2", "avx2 avx512f")),
        key(CMAKE_ARGS="-DGGML_CUDA=on"),
        key(CFLAGS="-O1"),
        key(CXX="clang++"),
        key(HNSWLIB_NO_NATIVE="1"),
    }
    assert len(keys) == 7
    assert key(PAGER="less") == key()
    assert key().startswith("engine-1.0-")
