"""Written by scripts/kernel_table.py: kernels of ONNX Runtime for the processor. Data."""

from __future__ import annotations

from typing import Final

RELEASES: Final[dict[str, tuple[int, int]]] = {
    "1.30": (13, 26),
    "1.31": (13, 26),
    "1.32": (14, 28),
}
"""Newest IR version and operator set that a release takes."""

NEW_IN: Final[dict[str, str]] = {
    "1.31": """
com.microsoft.BranchwiseRMSNorm com.microsoft.HyperConnectionPostMix
com.microsoft.HyperConnectionPreMix com.microsoft.ScaledSiLU
com.microsoft.VarlenNGramHashMapping
""",
    "1.32": """
com.microsoft.GatedDeltaNet com.microsoft.GatherPacked com.microsoft.MoEGroupRouter
com.microsoft.VarlenCausalConvWithState
""",
}
"""Operators that no release before had."""

KERNELS: Final = """
Abs 6-12,13+; Acos 7-21,22+; Acosh 9-21,22+; Add 7-13,14+; Affine 1+; AffineGrid 20+; And 7+;
ArgMax 1-12,13+; ArgMin 1-12,13+; Asin 7-21,22+; Asinh 9-21,22+; Atan 7-21,22+; Atanh 9-21,22+;
Attention 23,24+; AveragePool 7-21,22+; BatchNormalization 7-14,15+; BitCast 26+; BitShift
11-27,28+; BitwiseAnd 18+; BitwiseNot 18+; BitwiseOr 18+; BitwiseXor 18+; BlackmanWindow 17+;
Cast 6-27,28+; Ceil 6-12,13+; Celu 12-27,28+; Clip 6-12,13+; Col2Im 18+; Compress 9-27,28+;
Concat 4-12,13+; ConcatFromSequence 11+; ConstantOfShape 9-24,25+; Conv 1-21,22+; ConvInteger
10+; ConvTranspose 1-21,22+; Cos 7-21,22+; Cosh 9-21,22+; Crop 1+; CumProd 26+; CumSum
11-13,14+; DFT 17-19,20+; DeformConv 19-21,22+; DepthToSpace 1-27,28+; DequantizeLinear
10-24,25+; Det 11-21,22+; Div 7-13,14+; Dropout 7-21,22+; DynamicQuantizeLinear 11+;
DynamicSlice 1+; Einsum 12-27,28+; Elu 6-21,22+; Equal 7-18,19+; Erf 9-12,13+; Exp 6-12,13+;
Expand 8-12,13+; EyeLike 9-21,22+; Flatten 1-24,25+; Floor 6-12,13+; GRU 7-21,22+; Gather
1-12,13+; GatherElements 11-12,13+; GatherND 11-12,13+; Gelu 20+; Gemm 7-12,13+;
GlobalAveragePool 1-21,22+; GlobalLpPool 2+; GlobalMaxPool 1-21,22+; Greater 7-12,13+;
GreaterOrEqual 12-15,16+; GridSample 16-21,22+; HammingWindow 17+; HannWindow 17+; HardSigmoid
6-21,22+; Hardmax 1-12,13+; Identity 1-24,25+; If 1-24,25+; ImageScaler 1+;
InstanceNormalization 6-21,22+; IsInf 10-19,20+; IsNaN 9-19,20+; LRN 1-12,13+; LSTM 7-21,22+;
LayerNormalization 1-16,17+; LeakyRelu 6-15,16+; Less 7-12,13+; LessOrEqual 12-15,16+; Log
6-12,13+; LogSoftmax 1-12,13+; Loop 1-24,25+; LpNormalization 1-21,22+; LpPool 2-21,22+; MatMul
1-12,13+; MatMulInteger 10+; Max 6-12,13+; MaxPool 1-21,22+; MaxRoiPool 1+; MaxUnpool 9-21,22+;
Mean 6-12,13+; MeanVarianceNormalization 1-12,13+; MelWeightMatrix 17+; MemcpyFromHost 1+;
MemcpyToHost 1+; Min 6-12,13+; Mod 10-27,28+; Mul 7-13,14+; Multinomial 7+; Neg 6-12,13+;
NonMaxSuppression 10,11+; NonZero 9-12,13+; Not 1+; OneHot 9-27,28+; Optional 15+;
OptionalGetElement 15-17,18+; OptionalHasElement 15-17,18+; Or 7+; PRelu 7-15,16+; Pad 2-24,25+;
ParametricSoftplus 1+; Pow 7-14,15+; QLinearConv 10+; QLinearMatMul 10-20,21+; QuantizeLinear
10-24,25+; RMSNormalization 23+; RNN 7-21,22+; RandomNormal 1+; RandomNormalLike 1+;
RandomUniform 1+; RandomUniformLike 1+; Range 11-26,27+; Reciprocal 6-12,13+; ReduceL1 1-17,18+;
ReduceL2 1-17,18+; ReduceLogSum 1-17,18+; ReduceLogSumExp 1-17,18+; ReduceMax 1-19,20+;
ReduceMean 1-17,18+; ReduceMin 1-19,20+; ReduceProd 1-17,18+; ReduceSum 1-12,13+;
ReduceSumSquare 1-17,18+; RegexFullMatch 20+; Relu 6-13,14+; Reshape 1-24,25+; Resize 10-18,19+;
ReverseSequence 10-27,28+; RoiAlign 10-15,16+; RotaryEmbedding 23+; Round 11-21,22+; STFT 17+;
Scale 1+; ScaledTanh 1+; Scan 8-24,25+; Scatter 9-10; ScatterElements 11-17,18+; ScatterND
11-17,18+; Selu 6-21,22+; SequenceAt 11+; SequenceConstruct 11+; SequenceEmpty 11+;
SequenceErase 11+; SequenceInsert 11+; SequenceLength 11+; Shape 1-24,25+; Shrink 9+; Sigmoid
6-12,13+; Sign 9-12,13+; SimplifiedLayerNormalization 1+; Sin 7-21,22+; Sinh 9-21,22+; Size
1-24,25+; Slice 1-12,13+; Softmax 1-12,13+; Softplus 1-21,22+; Softsign 1-21,22+; SpaceToDepth
1-27,28+; Split 2-17,18+; SplitToSequence 11-23,24+; Sqrt 6-12,13+; Squeeze 1-24,25+;
StringConcat 20+; StringNormalizer 10+; StringSplit 20+; Sub 7-13,14+; Sum 6-12,13+; Tan
7-21,22+; Tanh 6-12,13+; TensorScatter 24+; TfIdfVectorizer 9+; ThresholdedRelu 1-21,22+; Tile
6-12,13+; TopK 1-23,24+; Transpose 1-24,25+; Trilu 14+; Unique 11-27,28+; Unsqueeze 1-24,25+;
Upsample 7-9; Where 9-15,16+; Xor 7+; ai.onnx.ml.ArrayFeatureExtractor 1+; ai.onnx.ml.Binarizer
1+; ai.onnx.ml.CastMap 1+; ai.onnx.ml.CategoryMapper 1+; ai.onnx.ml.DictVectorizer 1+;
ai.onnx.ml.FeatureVectorizer 1+; ai.onnx.ml.Imputer 1+; ai.onnx.ml.LabelEncoder 1-3,4+;
ai.onnx.ml.LinearClassifier 1+; ai.onnx.ml.LinearRegressor 1+; ai.onnx.ml.Normalizer 1+;
ai.onnx.ml.OneHotEncoder 1+; ai.onnx.ml.SVMClassifier 1+; ai.onnx.ml.SVMRegressor 1+;
ai.onnx.ml.Scaler 1+; ai.onnx.ml.TreeEnsemble 5+; ai.onnx.ml.TreeEnsembleClassifier 1-2,3+;
ai.onnx.ml.TreeEnsembleRegressor 1-2,3+; ai.onnx.ml.ZipMap 1+; com.microsoft.Attention 1+;
com.microsoft.AttnLSTM 1+; com.microsoft.BeamSearch 1+; com.microsoft.BiasGelu 1+;
com.microsoft.BifurcationDetector 1+; com.microsoft.BranchwiseRMSNorm 1+; com.microsoft.CDist
1+; com.microsoft.CausalConvWithState 1+; com.microsoft.ConvTransposeWithDynamicPads 1+;
com.microsoft.CropAndResize 1+; com.microsoft.DecoderMaskedMultiHeadAttention 1+;
com.microsoft.DequantizeLinear 1+; com.microsoft.DynamicQuantizeLSTM 1+;
com.microsoft.DynamicQuantizeMatMul 1+; com.microsoft.DynamicTimeWarping 1+;
com.microsoft.EmbedLayerNormalization 1+; com.microsoft.EngramGate 1+; com.microsoft.ExpandDims
1+; com.microsoft.FastGelu 1+; com.microsoft.FusedConv 1+; com.microsoft.FusedGemm 1+;
com.microsoft.FusedMatMul 1+; com.microsoft.GatedAdd 1+; com.microsoft.GatedDeltaNet 1+;
com.microsoft.GatedRMSNorm 1+; com.microsoft.GatherBlockQuantized 1+; com.microsoft.GatherND 1+;
com.microsoft.GatherPacked 1+; com.microsoft.Gelu 1+; com.microsoft.GreedySearch 1+;
com.microsoft.GridSample 1+; com.microsoft.GroupQueryAttention 1+;
com.microsoft.HyperConnectionPostMix 1+; com.microsoft.HyperConnectionPreMix 1+;
com.microsoft.Inverse 1+; com.microsoft.LinearAttention 1+; com.microsoft.LinearAttentionGate
1+; com.microsoft.MRotaryEmbedding 1+; com.microsoft.MatMulBnb4 1+; com.microsoft.MatMulFpQ4 1+;
com.microsoft.MatMulInteger16 1+; com.microsoft.MatMulIntegerToFloat 1+;
com.microsoft.MatMulNBits 1+; com.microsoft.MaxpoolWithMask 1+; com.microsoft.MoE 1+;
com.microsoft.MoEGroupRouter 1+; com.microsoft.MultiHeadAttention 1+; com.microsoft.MurmurHash3
1+; com.microsoft.NGramHashMapping 1+; com.microsoft.NGramRepeatBlock 1+;
com.microsoft.NhwcMaxPool 1+; com.microsoft.Pad 1+; com.microsoft.QAttention 1+;
com.microsoft.QEmbedLayerNormalization 1+; com.microsoft.QGemm 1+; com.microsoft.QLinearAdd 1+;
com.microsoft.QLinearAveragePool 1+; com.microsoft.QLinearConcat 1+; com.microsoft.QLinearConv
1+; com.microsoft.QLinearGlobalAveragePool 1+; com.microsoft.QLinearLeakyRelu 1+;
com.microsoft.QLinearMul 1+; com.microsoft.QLinearSigmoid 1+; com.microsoft.QLinearSoftmax 1+;
com.microsoft.QLinearWhere 1+; com.microsoft.QMoE 1+; com.microsoft.QuantizeLinear 1+;
com.microsoft.QuickGelu 1+; com.microsoft.Range 1+; com.microsoft.RotaryEmbedding 1+;
com.microsoft.SampleOp 1+; com.microsoft.Sampling 1+; com.microsoft.ScaledSiLU 1+;
com.microsoft.SkipLayerNormalization 1+; com.microsoft.SkipSimplifiedLayerNormalization 1+;
com.microsoft.SparseAttention 1+; com.microsoft.SparseToDenseMatMul 1+; com.microsoft.Tokenizer
1+; com.microsoft.TransposeMatMul 1+; com.microsoft.Trilu 1+; com.microsoft.UnfoldTensor 1+;
com.microsoft.Unique 1+; com.microsoft.VarlenCausalConvWithState 1+;
com.microsoft.VarlenNGramHashMapping 1+; com.microsoft.WhisperBeamSearch 1+;
com.microsoft.WordConvEmbedding 1+
"""
"""Operator and the versions of it that kernels take; `13+` is version 13 alone."""
