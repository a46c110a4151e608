"""Kernel families: the packaged rules, their traps, and what a broken rule file says."""

from pathlib import Path

import pytest

from kernels.families import FamilyRules

RULE = """
[[rule]]
id = "{id}"
priority = {priority}
family = "{family}"
where = "whole"
pattern = '{pattern}'
match = []
"""


@pytest.fixture(scope="module")
def rules() -> FamilyRules:
    return FamilyRules.load()


def write_rules(path: Path, *rows: tuple[str, int, str, str]) -> Path:
    text = "".join(RULE.format(id=i, priority=p, family=f, pattern=x) for i, p, f, x in rows)
    path.write_text(text, encoding="utf-8")
    return path


def test_families_every_rule_takes_its_own_examples(rules: FamilyRules) -> None:
    strays = [
        (rule.id, name, rules.explain(name))
        for rule in rules.rules
        for name in rule.match
        if rules.classify(name) != (rule.family, rule.id)
    ]
    assert all(rule.match for rule in rules.rules)
    assert strays == []


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        (
            "void at::native::elementwise_kernel<4, sqrt_kernel_cuda(int)::{lambda()#2}>()",
            "elementwise",
        ),
        ("void apex::lamb_stage_1_kernel<float>(int)", "optimizer"),
        (
            "void multi_tensor_apply_kernel<M<4>, LAMBStage2Functor<float> >(int)",
            "optimizer",
        ),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(long)",
            "communication",
        ),
        ("void multimem_one_shot_all_reduce_kernel<float>(float*)", "communication"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)", "reduce"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", "embedding"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "gemm"),
        ("void vector_fft<512u, EPT<8u>, 8u, float>(kernel_arguments_t<unsigned int>)", "fft"),
        ("void cusparse::csrmv_v3_kernel<int, double>(double*)", "sparse"),
        ("void nbnxn_kernel_ElecEw_VdwLJ_F_cuda(NBAtomDataGpu)", "molecular_dynamics"),
        ("void cunn_SoftMaxForward<8, float>(float*)", "softmax"),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_MI16x16x4x1", "gemm"),
        ("void deep_gemm::fp8_gemm_kernel<7168u>(int)", "gemm"),
        ("kernel_unified_attention_2d", "attention"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<float>(int)", "conv"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)", "norm"),
        ("void multi_tensor_apply_kernel<M<2>, BinaryOpScalarFunctor<float> >(int)", "elementwise"),
        ("void multi_tensor_apply_kernel<M<1>, LpNormFunctor<float> >(int)", "reduce"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2>(int)", "sort_scan"),
        ("_per_token_group_quant_fp8", "quantize_activation"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(int)", "communication"),
        ("void composite_2way_fft<2048u, 8u>(int)", "fft"),
        ("void getf2_cta_32x32<double>(int)", "solver"),
        ("triton_per_fused__softmax_3", "triton_fused"),
        ("triton_tem_fused_mm_5", "gemm"),
        ("loop_add_fusion_12", "elementwise"),
        # What it works on, and whose it is, say nothing beside what it does.
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x64x1_swiglu", "gemm"),
        ("mxfp4_marlin_gemm", "gemm"),
        ("_gemm_afp4wfp4_kernel", "gemm"),
        ("void gemm_kernel<NSA_Traits, flash::Layout>(int)", "gemm"),
        ("void ssd_embedding_forward<float>(int)", "embedding"),
        ("void fbgemm_gpu::_FP8rowwise_to_float_cuda_kernel<float>(int)", "quantize_activation"),
        ("void vllm::rms_norm_static_fp8_quant_kernel<half>(int)", "quantize_activation"),
        ("void moe::rms_norm_kernel<float>(int)", "moe"),
        ("void flash::gemm_kernel<float>(int)", "gemm"),
        ("void vllm::act_and_mul_kernel<half, &softmax_like>(int)", "elementwise"),
        ("Cijk_Ailk_Bljk_BBS_BH_NSA_MT128x128x16_MI16x16x4x1", "gemm"),
        (
            "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_24Collec",
            "attention",
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPc",
            "elementwise",
        ),
        ("void silently_new_kernel(int)", "other"),
        ("", "other"),
    ],
)
def test_families_known_traps(rules: FamilyRules, kernel: str, family: str) -> None:
    assert rules.classify(kernel)[0] == family


def test_families_explain_names_rule_and_words(rules: FamilyRules) -> None:
    told = rules.explain("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert (told.family, told.rule) == ("communication", "nccl")
    assert told.why == "found 'nccl' in the function's own name (priority 120)"
    assert rules.explain("zzz").why == "no other rule matches"


def test_families_lower_priority_number_wins(tmp_path: Path) -> None:
    path = write_rules(
        tmp_path / "rules.toml", ("last", 9, "other", ""), ("b", 2, "y", "ab"), ("a", 1, "x", "a")
    )
    assert FamilyRules.load(path).classify("cab") == ("x", "a")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((("a", 1, "x", "a"),), "last family rule"),
        ((("a", 1, "x", "a"), ("a", 2, "other", "")), "share the id a"),
        ((("a", 1, "x", "a"), ("b", 1, "other", "")), "share the priority 1"),
        (
            (("a", 1, "x", "("), ("b", 2, "other", "")),
            r"rule\[a\]\.pattern: expected a regular expression in quotes, got .*unterminated",
        ),
        ((("a", 1, "nowhere", "a"), ("b", 2, "other", "")), "'nowhere' is no family"),
    ],
)
def test_families_broken_rules_are_named(
    tmp_path: Path, rows: tuple[tuple[str, int, str, str], ...], message: str
) -> None:
    path = write_rules(tmp_path / "rules.toml", *rows)
    with pytest.raises(ValueError, match=message):
        FamilyRules.load(path, families={"x", "other"})


def test_families_a_rule_looks_in_its_part_of_the_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    parts = ("name", "arguments", "scope", "whole")
    text = "".join(
        RULE.format(
            id=part, priority=place, family=part, pattern="rms norm" if place < 3 else ""
        ).replace('"whole"', f'"{part}"')
        for place, part in enumerate(parts)
    )
    path.write_text(text, encoding="utf-8")
    rules = FamilyRules.load(path)
    assert rules.classify("void a::RMSNormKernel<int>(rms_norm)")[0] == "name"
    assert rules.classify("void a::kernel<2, RMSNorm<int> >(int)")[0] == "arguments"
    assert rules.classify("void rms_norm::kernel<2>(int)")[0] == "scope"
    assert rules.classify("void kernel<2>(rms_norm)")[0] == "whole"


def test_families_a_rule_that_looks_nowhere_is_named(tmp_path: Path) -> None:
    path = write_rules(tmp_path / "rules.toml", ("a", 1, "other", ""))
    path.write_text(path.read_text().replace('"whole"', '"parameters"'))
    with pytest.raises(ValueError, match=r"rule\[a\]\.where: expected one of whole, name"):
        FamilyRules.load(path)


def test_families_long_names_are_cut(rules: FamilyRules) -> None:
    assert rules.classify("x" * 1_000_000 + "gemm")[0] == "other"
