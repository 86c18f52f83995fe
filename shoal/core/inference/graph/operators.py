"""The operators that a graph may use: those of usual networks, with one result for one input.

Left out are those that draw random numbers, that loop or branch, that handle text, sequences or pictures, and
those whose output's size depends on the values of the input.
"""

_NAMES = """
    Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat
    Constant ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Einsum Elu Equal Erf Exp
    Expand Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    Not Or PRelu Pad Pow RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
    ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign
    SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile Transpose Trilu
    Unsqueeze Where Xor
"""
OPERATORS = frozenset(_NAMES.split())
