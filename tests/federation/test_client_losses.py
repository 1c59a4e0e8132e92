"""What the log says of each client: the sum of its loss terms, as long as clients can be listed."""

from fedfeat.federation.average import client_losses

REPLY = {"samples": 8, "loss.ce": 0.5, "loss.gsa": 0.25, "loss.first_epoch": 9.0, "prior_head": 0.1}


def test_terms_are_summed_in_the_order_of_clients():
    replies = {10: REPLY, 2: {"samples": 1, "loss.ce": 2.0}}
    assert list(client_losses(replies).items()) == [("2", 2.0), ("10", 0.75)]


def test_more_clients_than_a_log_can_list_are_left_out():
    assert client_losses(dict.fromkeys(range(4), REPLY), most=3) == {}
    assert len(client_losses(dict.fromkeys(range(3), REPLY), most=3)) == 3
