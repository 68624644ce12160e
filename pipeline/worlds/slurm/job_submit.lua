-- job_submit plugin for tidegrid: batch jobs of the partitions below wait until tidegrid starts them.
-- Install as job_submit.lua beside slurm.conf, set JobSubmitPlugins=lua, and reconfigure.
-- A job waits by its begin time, which tidegrid renews: without tidegrid it starts by itself after hold_seconds.
local partitions = { gpu = true }   -- the partitions whose batch jobs tidegrid starts
local default_partition = "gpu"     -- the partition of jobs that name none
local hold_seconds = 3600           -- as hold_minutes in slurm.json
local operators = { [0] = true }    -- the user ids that may start jobs: tidegrid's account, and root

local mark = "tidegrid:gate"

local function gated(job_desc)
  if job_desc.script == nil or job_desc.script == "" then
    return false  -- srun and salloc: somebody sits and waits
  end
  local names = job_desc.partition or default_partition
  for name in string.gmatch(names, "[^,]+") do
    if partitions[name] then
      return true
    end
  end
  return false
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if gated(job_desc) then
    local wait = os.time() + hold_seconds
    local asked = job_desc.begin_time
    if asked == nil or asked == slurm.NO_VAL or asked == slurm.NO_VAL64 or asked < wait then
      job_desc.begin_time = wait
    end
    job_desc.admin_comment = mark
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local comment = job_rec.admin_comment
  if operators[modify_uid] or comment == nil or string.sub(comment, 1, #mark) ~= mark then
    return slurm.SUCCESS
  end
  local begin = job_desc.begin_time
  if begin ~= nil and begin ~= slurm.NO_VAL and begin ~= slurm.NO_VAL64 and begin ~= 0 then
    slurm.log_user("tidegrid starts this job; its begin time is not yours to change")
    return slurm.ESLURM_ACCESS_DENIED
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
