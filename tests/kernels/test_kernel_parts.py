"""Parts of a kernel's name: its own name, arguments and namespaces as words, mangled or not."""

import pytest

from kernels.families import name_parts, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FusedAddRMSNormKernel", "fused add rms norm kernel"),
        ("fused_add_rms_norm", "fused add rms norm"),
        ("moeA2ADispatchKernel", "moe a2a dispatch kernel"),
        ("fusedMoERoPESwiGLU", "fused moe rope swiglu"),
        ("permute_2D_lengths", "permute 2d lengths"),
        ("SiLUGeLUReLU", "silu gelu relu"),
        ("fmhaSm100aKernel_QkvE4m3", "fmha sm100a kernel qkv e4m3"),
        ("LAMBStage1Functor", "lamb stage1 functor"),
        ("", ""),
    ],
)
def test_words_of_camel_case_and_underscores_are_the_same(text: str, expected: str) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("name", "own", "arguments", "scope"),
    [
        ("volta_sgemm_32x32_nt", "volta sgemm 32x32 nt", "", ""),
        ("void a::b::run_kernel<c::Gemm<4>, int>(d::Norm*)", "run kernel", "c gemm 4 int", "a b"),
        ("void (anonymous namespace)::f<x>(int)", "f", "x", ""),
        ("void <unnamed>::g<<unnamed>::A<2>, y>(B *)", "g", "a 2 y", ""),
        ("void unnamed>::g<unnamed>::A<2>, y>(B *)", "g", "a 2 y", ""),
        ("std::enable_if<(A<B), void>::type ns::f<x>(int)", "f", "x", "ns"),
        ("void k<op(a<b)>::run(int) [clone .kd]", "run", "op a b", "k"),
        ("Cijk_MT256 [clone .kd]", "cijk mt256", "", ""),
        ("gemm_kernel.kd", "gemm kernel", "", ""),
        ("void cut_in_the<middle, of", "cut in the", "middle of", ""),
        ("_ZN4vllm3moe10topkGatingILi4EEEvPKf", "topk gating", "", "vllm moe"),
        ("_ZN7cutlass6KernelIN5flash7AttnFwdILi2EEEEEvT_", "kernel", "flash attn fwd", "cutlass"),
        ("_ZN12_GLOBAL__N_15multiEv", "multi", "", ""),
        ("_ZL9rms_fuse_PKf", "rms fuse", "", ""),
        ("_ZN", "", "", ""),
        ("_Z12cut", "cut", "", ""),
        ("", "", "", ""),
    ],
)
def test_parts_of_a_name(name: str, own: str, arguments: str, scope: str) -> None:
    assert name_parts(name) == (name, own, arguments, scope)


def test_parts_of_hostile_names_are_bounded() -> None:
    for name in ("<" * 4096, "a<(" * 1365, "_ZN" + "1a" * 2000, "_Z9999" + "g" * 4000, "aB" * 2048):
        own, arguments, scope = name_parts(name)[1:]
        assert max(len(own), len(arguments), len(scope)) <= 2048
