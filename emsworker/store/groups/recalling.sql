-- name: list_own
-- Few rows: the claims in hand of all clients.
SELECT claim_id FROM ems_claim FORCE INDEX (live) WHERE state = 'start' AND client_id = %(client_id)s

-- name: find_taken
-- The claim that a packet has taken, if its COMMIT was reached.
SELECT `partition`, lo, hi, source, isolation FROM ems_claim FORCE INDEX (live)
WHERE state = 'start' AND group_id = %(group_id)s AND claim_id = %(claim_id)s AND client_id = %(client_id)s
