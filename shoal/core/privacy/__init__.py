"""What may leave a device, what it costs, and who pays: pure functions, no clock and no files.

terms       how much noise a release needs     cost        rho, Renyi curves and (epsilon, delta)
sums        what is summed, and how            budget      what a device's owner allows
release     noise, and the released descriptor payment     what is asked for, and what it costs
                                               accountant  where that is paid, and made
dpsgd       sampling and noise for training    ledger      the lines of a device's account
noise       exact random draws              report      what was released, in words
secure      sums over a cohort, of which the server sees no part
"""
